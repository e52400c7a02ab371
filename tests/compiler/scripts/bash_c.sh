# Another shell sees what is exported, and its own arguments.
export A=1
B=2
C=3 bash -c 'python3 -m verl.trainer.main_ppo trainer.a=$A trainer.b=${B:-hidden} trainer.c=$C trainer.d=$1' name four
#> trainer.a=1
#> trainer.b=hidden
#> trainer.c=3
#> trainer.d=four
