declare -A RATES=([small]=1e-5 ["large"]=1e-6)
RATES[tiny]=1e-4
size=large
python3 -m verl.trainer.main_ppo trainer.lr=${RATES[$size]} trainer.tiny="${RATES[tiny]}" \
    trainer.count=${#RATES[@]} trainer.none="${RATES[huge]:-0}"
#> trainer.lr=1e-6
#> trainer.tiny=1e-4
#> trainer.count=3
#> trainer.none=0
