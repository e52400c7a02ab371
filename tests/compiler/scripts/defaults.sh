# What is neither set here nor given from outside takes its default.
EMPTY=
: "${ASSIGNED:=four}" ${ALSO:=five}
SET=one
python3 -m verl.trainer.main_ppo trainer.a=${SET:-x} trainer.b=${UNSET:-two words} trainer.c="${UNSET:-two words}" \
    trainer.d=${EMPTY:-three} trainer.e=${EMPTY-never}. trainer.f=$ASSIGNED trainer.g=$ALSO \
    trainer.h=${SET:+on} trainer.i=${EMPTY:+off}. trainer.j=${EMPTY+on} trainer.k="${UNSET:-it is}" \
    trainer.l=${UNSET:-${SET}${UNSET2:-!}} trainer.m=${UNSET:-"a b"} trainer.p="${UNSET:-"a  b"}" trainer.q="${UNSET:-'q'}" trainer.n=${UNSET:-~/x} trainer.o=${GIVEN:-y}
#> trainer.a=one
#> trainer.b=two
#> words
#> trainer.c=two words
#> trainer.d=three
#> trainer.e=.
#> trainer.f=four
#> trainer.g=five
#> trainer.h=on
#> trainer.i=.
#> trainer.j=on
#> trainer.k=it is
#> trainer.l=one!
#> trainer.m=a b
#> trainer.p=a  b
#> trainer.q='q'
#> trainer.n=/home/user/x
#> trainer.o=given
