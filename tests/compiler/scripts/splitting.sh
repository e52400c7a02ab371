# An unquoted variable is split at blanks, a quoted one is not; an empty one is no word at all.
FLAGS="trainer.nnodes=1   trainer.val_only=True"
NOTHING=
python3 -m verl.trainer.main_ppo $FLAGS $NOTHING data.custom="$FLAGS" trainer.save_freq=$NOTHING"5"
#> trainer.nnodes=1
#> trainer.val_only=True
#> data.custom=trainer.nnodes=1   trainer.val_only=True
#> trainer.save_freq=5
