# Output goes to files and programs; no override is lost on the way.
cat > /dev/null <<EOF
trainer.inside=a heredoc $HOME
EOF
CUDA_VISIBLE_DEVICES=0 PYTHONUNBUFFERED=1 python3 -u -m verl.trainer.main_ppo > /dev/null trainer.a=1 2>&1 trainer.b=2 \
    2> /dev/null trainer.c=8 | cat
#> trainer.a=1
#> trainer.b=2
#> trainer.c=8
