# Comments and blank lines may stand in an array, which grows by +=.
DATA=(
    data.train_batch_size=8  # trailing
    # data.val_batch_size=9

    data.files="['$HOME/a', 'b']"
)
MORE=()
DATA+=(trainer.nnodes=1)
DATA[3]=trainer.n_gpus_per_node=2
DATA[1]+="#"
python3 -m verl.trainer.main_ppo "${DATA[@]}" "${MORE[@]}" trainer.count=${#DATA[@]} \
    trainer.second="${DATA[1]}" trainer.last=${DATA[-1]} "${DATA[@]:2:1}" trainer.all="${DATA[*]:2}"
#> data.train_batch_size=8
#> data.files=['/home/user/a', 'b']#
#> trainer.nnodes=1
#> trainer.n_gpus_per_node=2
#> trainer.count=4
#> trainer.second=data.files=['/home/user/a', 'b']#
#> trainer.last=trainer.n_gpus_per_node=2
#> trainer.nnodes=1
#> trainer.all=trainer.nnodes=1 trainer.n_gpus_per_node=2
