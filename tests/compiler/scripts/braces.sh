# Unquoted braces with a comma or dots are several words; in an assignment they are characters.
SIZES={4,8}
python3 -m verl.trainer.main_ppo \
    data.custom.{train,val}_batch_size=8 +trainer.extra={a:1,b:2} trainer.x_{1..3}=0 \
    "+trainer.kept={a:1,b:2}" +trainer.sizes=$SIZES +trainer.one={a} trainer.list=[1,2]
#> data.custom.train_batch_size=8
#> data.custom.val_batch_size=8
#> +trainer.extra=a:1
#> +trainer.extra=b:2
#> trainer.x_1=0
#> trainer.x_2=0
#> trainer.x_3=0
#> +trainer.kept={a:1,b:2}
#> +trainer.sizes={4,8}
#> +trainer.one={a}
#> trainer.list=[1,2]
