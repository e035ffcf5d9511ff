package train

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// begins is the key of a function in a context that launch calls before a run.
type begins struct{}

// limits is the key of a memory in a context.
type limits struct{}

// memory is what a run must do with, instead of what it is made for.
type memory struct {
	micro, holds int // tokens that a pass may have, and that it can have without an error; 0 = any number
	retry        bool
}

// memoryOf is the memory of a context; the zero value leaves a run as it is.
func memoryOf(ctx context.Context) memory {
	m, _ := ctx.Value(limits{}).(memory)
	return m
}

func launch(ctx context.Context, p policy.Policy, src Source, a algo.Algorithm, c Config, h run.Hooks) (Result, error) {
	if m := memoryOf(ctx); m != (memory{}) {
		c.MicroTokens, c.OOMRetry = m.micro, m.retry
		if m.holds > 0 {
			p = &scarce{p, m.holds}
		}
	}
	if begin, ok := ctx.Value(begins{}).(func()); ok {
		begin()
	}
	return Run(ctx, p, src, a, c, h)
}

// served are runs with servers in this process; a request that fails is repeated.
var served = regexp.MustCompile("served|servers|agents")

// TestFailuresReachTheCaller lets one thing fail in each run: a call into the native core, a file that cannot be written, or a
// truncated file of the checkpoint. The run must return the error and leave no tensor behind.
func TestFailuresReachTheCaller(t *testing.T) {
	for name, again := range everyRun() {
		t.Run(name, func(t *testing.T) {
			hash := fnv.New64()
			must.Get(hash.Write([]byte(name)))(t)
			rng := rand.New(rand.NewPCG(hash.Sum64(), 1))
			left := int64(math.MaxInt64)
			t.Run("without a failure", func(t *testing.T) { // whose servers have ended when others count tensors
				var err error
				left, err = brief(t, again, left, nil)
				expect.Require(t, stopped(err), "%v", err)
			})
			for range min(2, math.MaxInt64-left) { // some runs call nothing
				n := 1 + rng.Int64N(math.MaxInt64-left)
				t.Run(fmt.Sprint("call ", n), func(t *testing.T) {
					left, err := brief(t, again, n, nil)
					repeated := served.MatchString(name) && stopped(err)
					expect.True(t, left > 0 || torchtest.Injected(err) || repeated, "the error of the core is lost: %v", err)
				})
			}
			t.Run("files", func(t *testing.T) {
				file, pattern, cut := "", "*.*", rng.IntN(2) == 0
				if cut {
					pattern = "*.safetensors" // a resumed run reads no configuration or tokenizer
				}
				_, err := brief(t, again, 0, func(dir string, write func(dir string) error) error {
					files := must.Get(filepath.Glob(filepath.Join(dir, pattern)))(t)
					file = files[rng.IntN(len(files))]
					if cut {
						return os.Truncate(file, must.Get(os.Stat(file))(t).Size()/2)
					}
					must.Do(t, os.Remove(file))
					must.Do(t, os.Mkdir(file, 0o755))
					return write(dir)
				})
				expect.True(t, err != nil && !stopped(err), "the error of %s is lost: %v; truncated: %v", file, err, cut)
			})
		})
	}
}

// stopped says that a run was stopped, and nothing else.
func stopped(err error) bool { return err != nil && err.Error() == run.ErrStopped.Error() }

// brief takes a step of a run, stops it, and resumes it for another step. The n-th call into the core fails, 0 = none; left is
// torchtest.Left at the end. damage changes the checkpoint once it is written.
func brief(t *testing.T, again resumable, n int64, damage func(dir string, write func(dir string) error) error) (left int64, err error) {
	torchtest.NoLeaks(t)
	dir := t.TempDir()
	h := run.Hooks{Save: func(_ int, write func(dir string) error) error {
		if err := write(dir); err != nil || damage == nil {
			return err
		}
		return damage(dir, write)
	}}
	left = n
	for last := 1; ; last++ {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), begins{}, func() { torchtest.Fail(left) }))
		h.Progress = func(done, _ int, _ string) {
			if done == last {
				cancel()
			}
		}
		_, _, err = again(ctx, t, h)
		cancel()
		left = torchtest.Left()
		torchtest.Fail(0)
		if last == 2 || !stopped(err) {
			return left, err
		}
		h.Resume = dir
	}
}
