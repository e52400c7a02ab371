# Quotes go, what they hold together stays, and what follows them belongs to the same word.
NAME="two words"
python3 -m verl.trainer.main_ppo \
    trainer.logger='["console","wandb"]' \
    "data.train_files=['$HOME/a b.parquet']" \
    trainer.project_name="$NAME" trainer.experiment_name=it\'s\ $'tab\x41' \
    data.prompt_key=a"b"'c'd "data.reward_fn_key=\$x\"y\`z" reward.custom='$NAME' \
    ""
#> trainer.logger=["console","wandb"]
#> data.train_files=['/home/user/a b.parquet']
#> trainer.project_name=two words
#> trainer.experiment_name=it's tabA
#> data.prompt_key=abcd
#> data.reward_fn_key=$x"y`z
#> reward.custom=$NAME
#>
