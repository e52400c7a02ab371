pick() {
    case "$1" in
        gpu | npu) kind=device ;;
        *.sh) kind=script ;;
        [0-9]*) kind=number ;;
        "*") kind=star ;;
        a?c) kind=letters ;;
        fall) kind=fell ;&
        never) kind=$kind-through ;;
        on) kind=on ;;&
        o*) kind=$kind-and-o ;;
        ?) kind=one ;;
        *) kind=other ;;
    esac
}
for word in npu run.sh 8x "*" abc fall on z zz; do
    pick "$word"
    KINDS+=(trainer.k=$kind)
done
python3 -m verl.trainer.main_ppo "${KINDS[@]}"
#> trainer.k=device
#> trainer.k=script
#> trainer.k=number
#> trainer.k=star
#> trainer.k=letters
#> trainer.k=fell-through
#> trainer.k=on-and-o
#> trainer.k=one
#> trainer.k=other
#~ comes later
