prompt=512 response=$((1024 * 2))
total=prompt+response
(( count = 3 ))
count=$((count + 1))
let "twice = count * 2"
python3 -m verl.trainer.main_ppo trainer.a=$((prompt + response)) trainer.b=$(( (prompt+response)*2 )) trainer.c=$(((prompt + response) * 3)) \
    trainer.d=$((total)) trainer.e=$((-7 / 2)) trainer.f=$((-7 % 3)) trainer.g=$((2 ** 10)) trainer.h=$((0x10 + 010)) \
    trainer.i=$((prompt > 100 ? 1 : 0)) trainer.j=$((1 << 4 | 1)) trainer.k=$count trainer.l=$((count++ + ++count)) \
    trainer.m=$((!count && 1 || 0)) trainer.n=$((${prompt} / 2)) trainer.o=$twice trainer.p=$((1, 2)) trainer.q=$((~0)) \
    trainer.r=$((9223372036854775807 + 1)) trainer.s="$((count += 10))" trainer.t=$((0 && (count = 99))) trainer.u=$count
#> trainer.a=2560
#> trainer.b=5120
#> trainer.c=7680
#> trainer.d=2560
#> trainer.e=-3
#> trainer.f=-1
#> trainer.g=1024
#> trainer.h=24
#> trainer.i=1
#> trainer.j=17
#> trainer.k=4
#> trainer.l=10
#> trainer.m=0
#> trainer.n=256
#> trainer.o=8
#> trainer.p=2
#> trainer.q=-1
#> trainer.r=-9223372036854775808
#> trainer.s=16
#> trainer.t=0
#> trainer.u=16
