X=1
(X=2; cd /tmp; exit 3)
{ Y=2; }
echo x | { X=3; cat > /dev/null; }
python3 -m verl.trainer.main_ppo trainer.x=$X trainer.y=$Y
#> trainer.x=1
#> trainer.y=2
