# Quotes in a heredoc are characters, inside $( ) too; a quoted delimiter expands nothing.
NAME=x
json=$(cat <<EOF
{"it's": "$NAME", "b": [1, 2]}
EOF
)
cat <<-'END' > /dev/null && after=yes
	trainer.inside=$NAME ) " '
	END
python3 -m verl.trainer.main_ppo "trainer.json=$json" trainer.after=$after
#> trainer.json={"it's": "x", "b": [1, 2]}
#> trainer.after=yes
