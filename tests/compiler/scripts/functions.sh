size=outer
choose() {
    local size=$1 other
    other=inner
    seen=$size$other
    [ "$size" = 1 ] && return 0
    return 1
}
function train {
    python3 -m verl.trainer.main_ppo trainer.size=$size trainer.seen=$seen trainer.other="${other:-none}" "$@" trainer.count=$# trainer.first=$1 "${@:2}"
}
if choose 1; then a=yes; fi
if choose 2; then b=yes; else b=no; fi
train trainer.a=$a "trainer.b=$b c"
#> trainer.size=outer
#> trainer.seen=2inner
#> trainer.other=none
#> trainer.a=yes
#> trainer.b=no c
#> trainer.count=2
#> trainer.first=trainer.a=yes
#> trainer.b=no c
#~ comes later
