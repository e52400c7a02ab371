IFS=, read -r first second <<< "a,b,c"
IFS=':' read -ra PARTS <<< "x:y:z"
read -r word rest <<EOF
one two three
EOF
python3 -m verl.trainer.main_ppo trainer.first=$first trainer.second=$second trainer.parts=${PARTS[1]} trainer.count=${#PARTS[@]} \
    trainer.word=$word trainer.rest="$rest"
#> trainer.first=a
#> trainer.second=b,c
#> trainer.parts=y
#> trainer.count=3
#> trainer.word=one
#> trainer.rest=two three
