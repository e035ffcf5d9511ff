package judge

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"github.com/rltrain/rltrain/envs"
)

// store keeps verdicts in memory and, if it has a file, on disk: a line of JSON each.
type store struct {
	lock     sync.Mutex
	verdicts map[string][]float64
	asking   map[string]chan struct{} // closed when the question has been asked
	file     *os.File                 // nil = none
}

// line is a verdict in the file.
type line struct {
	Key    string    `json:"key"`
	Shares []float64 `json:"shares"`
}

// keyOf identifies a question.
func keyOf(model string, messages []envs.Message, choices []string) string {
	text, _ := json.Marshal([]any{model, messages, choices}) // of strings, which cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// openStore reads the verdicts of a file; path "" = none. A last line that a crash cut off is removed.
func openStore(path string) (*store, error) {
	s := &store{verdicts: map[string][]float64{}, asking: map[string]chan struct{}{}}
	if path == "" {
		return s, nil
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	s.file = file
	if err := s.load(path); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return s, nil
}

func (s *store) load(path string) error {
	r, end := bufio.NewReader(s.file), int64(0)
	for n := 1; ; n++ {
		text, err := r.ReadBytes('\n')
		switch {
		case err == io.EOF && len(text) > 0:
			return s.file.Truncate(end)
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		var v line
		if json.Unmarshal(text, &v) != nil || !v.valid() {
			return fmt.Errorf("%s:%d: not a verdict of a judge; name another file", path, n)
		}
		s.verdicts[v.Key] = v.Shares
		end += int64(len(text))
	}
}

func (v line) valid() bool {
	sum := 0.0
	for _, p := range v.Shares {
		if !(p >= 0 && p <= 1) {
			return false
		}
		sum += p
	}
	return v.Key != "" && math.Abs(sum-1) < 1e-6
}

// get returns a verdict, and whether it was there. If not, it asks; a question that is being asked is waited for.
func (s *store) get(ctx context.Context, key string, ask func() ([]float64, error)) (shares []float64, cached bool, err error) {
	for {
		s.lock.Lock()
		if shares, cached = s.verdicts[key]; cached {
			s.lock.Unlock()
			return shares, true, nil
		}
		asked := s.asking[key]
		if asked == nil {
			break
		}
		s.lock.Unlock()
		select {
		case <-asked:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
	asked := make(chan struct{})
	s.asking[key] = asked
	s.lock.Unlock()
	shares, err = ask()
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.asking, key)
	close(asked)
	if err != nil {
		return nil, false, err
	}
	s.verdicts[key] = shares
	return shares, false, s.write(line{key, shares})
}

// write appends a verdict to the file, in one call, so that several processes may share the file.
func (s *store) write(v line) error {
	if s.file == nil {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := s.file.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("judge_cache: %w", err)
	}
	return nil
}

func (s *store) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
