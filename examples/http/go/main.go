// Writes every line of its input to a register, while it holds a lock, through a gateway.
//
//	go run . http://127.0.0.1:7420 NAME < lines
//
// Needs only Go 1.19 or newer. BEARER_FILE names a file with the secret of a token, TTL_MS sets the TTL.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

type object map[string]any

// The answers that this program reads.
type answer struct {
	Token   uint64 `json:"token"`
	ValidMs int64  `json:"valid_ms"`
	RenewMs int64  `json:"renew_ms"`
}

// What a gateway answers when it refuses.
type problem struct {
	Kind   string `json:"kind"`
	Title  string `json:"title"`
	Reason string `json:"reason"`
	Seen   uint64 `json:"seen"`
}

func (p *problem) Error() string { return p.Title }

var (
	url, name = os.Args[1], os.Args[2]
	ttl       = 30000
	// Fresh for every acquisition, and secret: it is what makes the lock ours, and a repeated request harmless.
	holder = random()
	bearer string
)

func random() string {
	bytes := make([]byte, 16)
	if _, err := rand.Read(bytes); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes)
}

func ask(ctx context.Context, path string, body object) (answer, error) {
	var found answer
	text, err := json.Marshal(body)
	if err != nil {
		return found, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/"+path, bytes.NewReader(text))
	if err != nil {
		return found, err
	}
	request.Header.Set("Content-Type", "application/json")
	if bearer != "" {
		request.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return found, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		refused := new(problem)
		if err := json.NewDecoder(response.Body).Decode(refused); err != nil {
			return found, err
		}
		return found, refused
	}
	return found, json.NewDecoder(response.Body).Decode(&found)
}

func end(code int, why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(code)
}

func acquire() (answer, time.Time) {
	// stay keeps our place in line until we ask again.
	body := object{"name": name, "holder": holder, "ttl_ms": ttl, "wait_ms": 20000, "stay": true}
	for {
		sent := time.Now() // the lease counts from here, not from the answer
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		grant, err := ask(ctx, "acquire", body)
		cancel()
		var refused *problem
		if err == nil {
			return grant, sent.Add(time.Duration(grant.ValidMs) * time.Millisecond)
		}
		if errors.As(err, &refused) && refused.Kind != "busy" && refused.Kind != "closed" && refused.Kind != "unavailable" {
			end(1, "refused: "+refused.Title)
		}
		// The same holder id asks again: a grant that was not heard is heard now.
		time.Sleep(100 * time.Millisecond)
	}
}

// Renews for as long as the program runs. When the lock is lost, or may be, the program ends.
func keep(grant answer, deadline time.Time) {
	pause := time.Duration(grant.RenewMs) * time.Millisecond
	for wait := pause; ; wait = pause {
		if left := time.Until(deadline); left < wait {
			wait = left
		}
		time.Sleep(wait)
		sent := time.Now()
		if !sent.Before(deadline) {
			end(76, "lost: not renewed in time")
		}
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		renewed, err := ask(ctx, "renew", object{"name": name, "holder": holder, "ttl_ms": ttl})
		cancel()
		var refused *problem
		if err == nil {
			deadline = sent.Add(time.Duration(renewed.ValidMs) * time.Millisecond)
			pause = time.Duration(grant.RenewMs) * time.Millisecond
		} else if errors.As(err, &refused) && refused.Kind == "lost" {
			end(76, "lost: "+refused.Reason)
		} else {
			pause = 200 * time.Millisecond // asked again until the deadline
		}
	}
}

// Carries out a request at the fence; ends when it is refused.
func fenced(path string, body object) {
	_, err := ask(context.Background(), path, body)
	var refused *problem
	if errors.As(err, &refused) && refused.Kind == "stale" {
		// A later holder was here: we were paused for too long, or broken, and have not noticed yet.
		end(1, fmt.Sprintf("stale: the fence has seen token %d", refused.Seen))
	} else if err != nil {
		end(1, "refused: "+err.Error())
	}
}

func main() {
	if text := os.Getenv("TTL_MS"); text != "" {
		number, err := strconv.Atoi(text)
		if err != nil {
			end(1, "TTL_MS is not a number")
		}
		ttl = number
	}
	if file := os.Getenv("BEARER_FILE"); file != "" {
		secret, err := os.ReadFile(file)
		if err != nil {
			end(1, err.Error())
		}
		bearer = strings.TrimSpace(string(secret))
	}
	grant, deadline := acquire()
	go keep(grant, deadline)
	fmt.Printf("token %d\n", grant.Token)
	pass := object{"lock": name, "token": grant.Token, "holder": holder}
	// From now on the fence refuses earlier holders of the lock.
	fenced("registers/enter", object{"key": "last/" + name, "pass": pass})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		value := base64.StdEncoding.EncodeToString([]byte(lines.Text()))
		fenced("registers/write", object{"key": "last/" + name, "pass": pass, "value64": value})
		fmt.Printf("wrote %s\n", lines.Text())
	}
	if _, err := ask(context.Background(), "release", object{"name": name, "holder": holder}); err != nil {
		end(76, "lost: "+err.Error())
	}
}
