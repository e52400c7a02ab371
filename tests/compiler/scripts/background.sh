nohup python3 -m verl.trainer.main_ppo trainer.a=1 > /dev/null 2>&1 &
wait
#> trainer.a=1
