MODEL=Qwen/Qwen3-8B.Instruct
N=MODEL
python3 -m verl.trainer.main_ppo trainer.a=${MODEL##*/} trainer.b=${MODEL%%/*} trainer.c=${MODEL%.*} trainer.d=${MODEL#*e} \
    trainer.e=${MODEL//[.\/]/_} trainer.f=${MODEL/Qwen/q} trainer.g=${MODEL/#Qwen/q} trainer.h=${MODEL/%Instruct/I} \
    trainer.i=${MODEL:5} trainer.j=${MODEL:0:4} trainer.k=${MODEL: -3} trainer.l=${#MODEL} trainer.m=${MODEL^^} \
    trainer.n=${MODEL,,} trainer.o=${MODEL^} trainer.p=${!N} trainer.q="${MODEL//Q}" trainer.r=${MODEL/"*"/x}
#> trainer.a=Qwen3-8B.Instruct
#> trainer.b=Qwen
#> trainer.c=Qwen/Qwen3-8B
#> trainer.d=n/Qwen3-8B.Instruct
#> trainer.e=Qwen_Qwen3-8B_Instruct
#> trainer.f=q/Qwen3-8B.Instruct
#> trainer.g=q/Qwen3-8B.Instruct
#> trainer.h=Qwen/Qwen3-8B.I
#> trainer.i=Qwen3-8B.Instruct
#> trainer.j=Qwen
#> trainer.k=uct
#> trainer.l=22
#> trainer.m=QWEN/QWEN3-8B.INSTRUCT
#> trainer.n=qwen/qwen3-8b.instruct
#> trainer.o=Qwen/Qwen3-8B.Instruct
#> trainer.p=Qwen/Qwen3-8B.Instruct
#> trainer.q=wen/wen3-8B.Instruct
#> trainer.r=Qwen/Qwen3-8B.Instruct
