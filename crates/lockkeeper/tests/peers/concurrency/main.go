// Go's concurrency.Mutex in a process of its own: `peer ENDPOINT NAME COUNT DIR` has COUNT critical sections with
// pauses between them. Each adds one line, "REVISION go", to DIR/log; one that finds another client inside adds
// "overlap".
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func section(dir string, revision int64) {
	inside := filepath.Join(dir, "inside")
	file, err := os.OpenFile(inside, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	overlap := err != nil
	if err == nil {
		file.Close()
	}
	text, err := os.ReadFile(filepath.Join(dir, "count"))
	must(err)
	count, _ := strconv.Atoi(string(text))
	time.Sleep(200 * time.Microsecond)
	must(os.WriteFile(filepath.Join(dir, "count"), []byte(strconv.Itoa(count+1)), 0o600))
	line := fmt.Sprintf("%d go\n", revision)
	if overlap {
		line = "overlap\n" + line
	}
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	must(err)
	_, err = log.WriteString(line)
	must(err)
	log.Close()
	os.Remove(inside)
}

func main() {
	ctx := context.Background()
	endpoint, name, dir := os.Args[1], os.Args[2], os.Args[4]
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second})
	must(err)
	defer client.Close()
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	must(err)
	defer session.Close()
	mutex := concurrency.NewMutex(session, name)
	for i := 0; i < count; i++ {
		must(mutex.Lock(ctx))
		section(dir, mutex.Header().Revision)
		must(mutex.Unlock(ctx))
		time.Sleep(time.Duration(rand.Intn(20)) * time.Millisecond)
	}
}
