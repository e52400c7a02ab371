DIR=~/data
python3 -m verl.trainer.main_ppo trainer.a=$DIR trainer.b=~/x "trainer.c=~/x" ~/y trainer.d=a~
#> trainer.a=/home/user/data
#> trainer.b=~/x
#> trainer.c=~/x
#> /home/user/y
#> trainer.d=a~
