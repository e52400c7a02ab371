COMMAND="python3 -m verl.trainer.main_ppo trainer.a=1"
COMMAND="$COMMAND trainer.b='x y'"
eval "$COMMAND" 'trainer.c=$((1 + 1))'
#> trainer.a=1
#> trainer.b=x y
#> trainer.c=2
