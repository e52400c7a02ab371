# File names are never looked for.
python3 -m verl.trainer.main_ppo data.files=*.parquet data.more=[ab]?.json
#> data.files=*.parquet
#> data.more=[ab]?.json
