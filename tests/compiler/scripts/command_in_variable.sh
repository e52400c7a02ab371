PYTHON=python3
RUN=(nohup "$PYTHON" -m verl.trainer.main_ppo)
"${RUN[@]}" trainer.a=1
#> trainer.a=1
