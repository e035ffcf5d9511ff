package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/torch"
)

// link is the cost of an exchange between the ranks of a group, in one process, over the loopback interface.
type link struct {
	Ranks   int     `json:"ranks"`
	Latency float64 `json:"latency_s"`   // of an exchange of a few bytes
	Rate    float64 `json:"bytes_per_s"` // of the sum of sumFloats gradients: 4 bytes each, divided by the time
}

// The best of several rounds counts, because other processes only slow them down.
const (
	rounds       = 10
	latencyTries = 20 // per round
	sumFloats    = 4 << 20
)

// measureLinks times exchanges between 2, 4 and 8 ranks.
func measureLinks(ctx context.Context) ([]link, error) {
	var all []link
	for _, ranks := range []int{2, 4, 8} {
		groups, err := join(ctx, ranks)
		if err != nil {
			return nil, err
		}
		l := link{Ranks: ranks}
		if err := l.measure(groups); err != nil {
			return nil, err
		}
		for _, g := range groups {
			g.Close()
		}
		all = append(all, l)
	}
	return all, nil
}

// join creates a group whose ranks are goroutines.
func join(ctx context.Context, ranks int) ([]*dist.Group, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	groups := make([]*dist.Group, ranks)
	err = each(ranks, func(rank int) (err error) {
		groups[rank], err = dist.Join(ctx, dist.Place{Rank: rank, Size: ranks, Host: "127.0.0.1", Port: port}, dist.Member{}, time.Minute)
		return err
	})
	return groups, err
}

// each runs do concurrently for all ranks.
func each(ranks int, do func(rank int) error) error {
	errs := make([]error, ranks)
	var all sync.WaitGroup
	for rank := range ranks {
		all.Go(func() { errs[rank] = do(rank) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (l *link) measure(groups []*dist.Group) error {
	spent, err := best(func() error {
		return each(l.Ranks, func(rank int) error {
			for range latencyTries {
				if _, err := dist.Gather(groups[rank], rank); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	l.Latency = spent / latencyTries
	params := make([]*torch.Var, l.Ranks)
	for rank := range params {
		v, err := torch.Parameter(make([]float32, sumFloats), sumFloats)
		if err != nil {
			return err
		}
		defer v.Close()
		params[rank] = v
	}
	for _, v := range params {
		if err := torch.Do(torch.Train, func(s *torch.Scope) error {
			s.Backward(s.Sum(v.T()))
			return nil
		}); err != nil {
			return err
		}
	}
	spent, err = best(func() error {
		return each(l.Ranks, func(rank int) error { return groups[rank].SumGrads(params[rank : rank+1]) })
	})
	l.Rate = 4 * sumFloats / spent
	return err
}

// best is the shortest time of do, in seconds.
func best(do func() error) (least float64, err error) {
	for round := range rounds {
		began := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		if spent := time.Since(began).Seconds(); round == 0 || spent < least {
			least = spent
		}
	}
	return least, nil
}

// weightLoad is how long a server took to load an adapter, by attempt.
type weightLoad struct {
	Bytes   float64   `json:"bytes"`
	Seconds []float64 `json:"seconds"`
}

// server is a process of `rltrain serve`.
type server struct {
	command *exec.Cmd
	url     string
}

func startServer(ctx context.Context, program string, args ...string) (*server, error) {
	s := &server{command: exec.CommandContext(ctx, program, append([]string{"serve", "--port", "0"}, args...)...)}
	out, err := s.command.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	said := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said += lines.Text() + "\n"
		if _, address, found := strings.Cut(lines.Text(), " at http"); found {
			s.url = "http" + address
			go func() { _, _ = io.Copy(io.Discard, out) }() // keeps the pipe from filling up
			return s, nil
		}
	}
	s.stop()
	return nil, fmt.Errorf("%s serve did not start: %s", program, said)
}

func (s *server) stop() {
	_ = s.command.Process.Kill() // it may have exited
	_ = s.command.Wait()         // always an error after Kill
}

// post sends a request that must succeed, and returns its time in seconds.
func (s *server) post(ctx context.Context, path string, body map[string]string) (float64, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	began := time.Now()
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, answer.Status, text)
	}
	return time.Since(began).Seconds(), err
}
