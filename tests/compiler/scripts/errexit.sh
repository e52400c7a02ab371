# `set -e` ends a script at a failing command, but not inside a condition.
set -e
false || X=1
if false; then :; fi
false && Y=1
! true
python3 -m verl.trainer.main_ppo trainer.x=$X
false
python3 -m verl.trainer.main_ppo trainer.x=2
#> trainer.x=1
