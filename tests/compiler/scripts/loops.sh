FILES= SEEN= PAIRS= SEQ=
for f in a b; do FILES="$FILES${FILES:+,}$f.parquet"; done
for ((i = 0; i < 3; i++)); do STEPS+=($i); done
n=0
while [ $n -lt 10 ]; do
    n=$((n + 1))
    [ $n -eq 2 ] && continue
    [ $n -eq 4 ] && break
    SEEN+=$n
done
until ((n == 0)); do ((n--)); done
for i in 1 2; do for j in a b; do [ $j = b ] && continue 2; PAIRS+=$i$j; done; done
for key in $(seq 2 3); do SEQ+=$key; done
for word; do exit 1; done
python3 -m verl.trainer.main_ppo data.files="[$FILES]" trainer.steps="${STEPS[*]}" trainer.seen=$SEEN trainer.n=$n \
    trainer.pairs=$PAIRS trainer.seq=$SEQ
#> data.files=[a.parquet,b.parquet]
#> trainer.steps=0 1 2
#> trainer.seen=13
#> trainer.n=0
#> trainer.pairs=1a2a
#> trainer.seq=23
