// redsync: acquire and release, `peer PORT[,PORT…] TASKS EACH WARM`. Prints the seconds that all cycles took, and those
// of its CPU.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

func cpu() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func main() {
	var pools []redis.Pool
	for _, port := range strings.Split(os.Args[1], ",") {
		pools = append(pools, goredis.NewPool(goredislib.NewClient(&goredislib.Options{Addr: "127.0.0.1:" + port})))
	}
	locks := redsync.New(pools...)
	tasks := number(os.Args[2])
	cycles := func(each int) {
		var all sync.WaitGroup
		for task := range tasks {
			all.Add(1)
			go func() {
				defer all.Done()
				mutex := locks.NewMutex(fmt.Sprint("peers/", task), redsync.WithExpiry(30*time.Second))
				for range each {
					check(mutex.Lock())
					_, err := mutex.Unlock()
					check(err)
				}
			}()
		}
		all.Wait()
	}
	cycles(number(os.Args[4]))
	began, before := time.Now(), cpu()
	cycles(number(os.Args[3]))
	fmt.Println(time.Since(began).Seconds(), cpu()-before)
}
