N=4 NAME=vllm EMPTY=""
if [ "$N" -gt 2 ] && [ "$NAME" = vllm ]; then A=1; else A=0; fi
if [[ $NAME == v* && ! -n $EMPTY ]]; then B=1; elif [ -z "$NAME" ]; then B=2; else B=0; fi
if [ "$N" -eq 5 ]; then C=1; elif [[ $NAME =~ ^(vllm|sglang)$ ]]; then C=${BASH_REMATCH[1]}; else C=0; fi
if test -n "$EMPTY" -o "$N" != 4; then D=1; else D=0; fi
if ! false && (( N % 2 == 0 )); then E=1; else E=0; fi
[ "$N" -gt 8 ] && F=big || F=small
[[ "$NAME" != "v*" ]] && G=quoted
if [ ! "$NAME" = sglang -a \( "$N" -lt 5 -o -n "" \) ]; then H=1; fi
[[ 10 -gt N && a < b ]] && I=1
if [[ -z ${UNSET:-} ]]; then J=1; fi
if [ $EMPTY ]; then K=1; else K=0; fi
if [[ $NAME == "$NAME" ]]; then :; else exit 1; fi
python3 -m verl.trainer.main_ppo trainer.a=$A trainer.b=$B trainer.c=$C trainer.d=$D trainer.e=$E trainer.f=$F \
    trainer.g=$G trainer.h=$H trainer.i=$I trainer.j=$J trainer.k=$K
#> trainer.a=1
#> trainer.b=1
#> trainer.c=vllm
#> trainer.d=0
#> trainer.e=1
#> trainer.f=small
#> trainer.g=quoted
#> trainer.h=1
#> trainer.i=1
#> trainer.j=1
#> trainer.k=0
