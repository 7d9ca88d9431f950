// redsync, told over standard input what to do: `peer PORT[,PORT…]`. The orders and their answers are in mod.rs.
package main

import (
	"bufio"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

const pause = 8 * time.Millisecond

var (
	sync  *redsync.Redsync
	held  *redsync.Mutex
	name  string
	times = []redsync.Option{redsync.WithTries(5000), redsync.WithRetryDelayFunc(func(int) time.Duration {
		return time.Duration(2000+rand.Intn(4000)) * time.Microsecond
	})}
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func now() int64 {
	var ts unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return ts.Nano()
}

func ms(text string) time.Duration {
	n, err := strconv.Atoi(text)
	check(err)
	return time.Duration(n) * time.Millisecond
}

func said(word bool) string {
	if word {
		return "yes"
	}
	return "no"
}

func section(place string) (begin, end int64, overlaps int) {
	inside, count := filepath.Join(place, "inside"), filepath.Join(place, "count")
	begin = now()
	file, err := os.OpenFile(inside, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		overlaps = 1
	} else {
		check(file.Close())
	}
	text, err := os.ReadFile(count)
	check(err)
	n, _ := strconv.Atoi(string(text))
	time.Sleep(200 * time.Microsecond)
	check(os.WriteFile(count, []byte(strconv.Itoa(n+1)), 0o600))
	if os.Remove(inside) != nil {
		overlaps = 1
	}
	return begin, now(), overlaps
}

func storm(name string, ttl time.Duration, rounds int, place string) string {
	overlaps, said := 0, ""
	for range rounds {
		mutex := sync.NewMutex(name, append(times, redsync.WithExpiry(ttl))...)
		check(mutex.Lock())
		begin, end, others := section(place)
		if ok, err := mutex.Unlock(); !ok {
			panic(err)
		}
		overlaps += others
		said += fmt.Sprintf(" %d %d", begin, end)
		time.Sleep(time.Duration(rand.Int63n(int64(pause))))
	}
	return strconv.Itoa(overlaps) + said
}

func obey(words []string) string {
	switch words[0] {
	case "take":
		name = words[1]
		held = sync.NewMutex(name, redsync.WithExpiry(ms(words[2])), redsync.WithTries(1))
		return fmt.Sprint(said(held.Lock() == nil), " ", now())
	case "wait":
		name = words[1]
		held = sync.NewMutex(name, append(times, redsync.WithExpiry(ms(words[2])))...)
		return fmt.Sprint(said(held.Lock() == nil), " ", now())
	case "free":
		asked := now()
		ok, _ := held.Unlock()
		return fmt.Sprint(said(ok), " ", asked)
	case "extend":
		again := sync.NewMutex(name, redsync.WithExpiry(ms(words[1])), redsync.WithValue(held.Value()))
		ok, _ := again.Extend()
		return said(ok)
	case "storm":
		rounds, err := strconv.Atoi(words[3])
		check(err)
		return storm(words[1], ms(words[2]), rounds, words[4])
	}
	panic(words[0])
}

func main() {
	var pools []redis.Pool
	for _, port := range strings.Split(os.Args[1], ",") {
		pools = append(pools, goredis.NewPool(goredislib.NewClient(&goredislib.Options{Addr: "127.0.0.1:" + port})))
	}
	sync = redsync.New(pools...)
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		fmt.Println("@", obey(strings.Split(orders.Text(), " ")))
	}
}
