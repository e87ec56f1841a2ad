sleep 600
