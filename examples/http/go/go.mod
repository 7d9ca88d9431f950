module example/hold

go 1.19
