# Arguments come from the user; the test gives three.
set -xeuo pipefail
engine=${1:-vllm}
shift
rest=$*
python3 -m verl.trainer.main_ppo trainer.engine=$engine trainer.rest="$rest" "$@"
set -- trainer.x=1
python3 -m verl.trainer.main_eval data.path=x "$@" $#
#> trainer.engine=sglang
#> trainer.rest=trainer.a=1 trainer.b=x y
#> trainer.a=1
#> trainer.b=x y
#~ also launches
