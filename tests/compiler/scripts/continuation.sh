# A backslash joins lines, within words too.
python3 -m verl.trainer.main_ppo \
    data.train_batch_size=8 data.max_prompt_\
length=64 \
    trainer.nnodes=1
#> data.train_batch_size=8
#> data.max_prompt_length=64
#> trainer.nnodes=1
