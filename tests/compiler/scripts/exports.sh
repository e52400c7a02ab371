export A=1 B="two words"
readonly C=3
declare -x D=4
declare -i E=5
export A
unset B
python3 -m verl.trainer.main_ppo trainer.a=$A trainer.b=${B:-gone} trainer.c=$C trainer.d=$D trainer.e=$E
#> trainer.a=1
#> trainer.b=gone
#> trainer.c=3
#> trainer.d=4
#> trainer.e=5
