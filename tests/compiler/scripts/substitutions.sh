# $(...) is read where its output follows from the words; the inside is a subshell.
MODEL=/models/Qwen3-8B/
X=1
name=$(basename "$MODEL")
dir=`dirname /a/b/c.txt`
joined=$(echo "$X-$name" | cat)
text=$(X=2; echo "in $X"; printf '%s=%03d\n' n 7)
config=$(cat <<EOF
{"model": "$name", 'cost': \$5}
EOF
)
raw=$(cat <<'EOF'
$name
EOF
)
here=$(cd /usr/lib/.. && pwd)
python3 -m verl.trainer.main_ppo trainer.name=$name trainer.dir=$dir trainer.text="$text" trainer.x=$X trainer.config="$config" \
    trainer.raw="$raw" trainer.here=$here trainer.nested=$(echo $(echo "a  b")) trainer.kept="$(echo "a  b")"
#> trainer.name=Qwen3-8B
#> trainer.dir=/a/b
#> trainer.text=in 2\nn=007
#> trainer.x=1
#> trainer.config={"model": "Qwen3-8B", 'cost': $5}
#> trainer.raw=$name
#> trainer.here=/usr
#> trainer.nested=a
#> b
#> trainer.kept=a  b
