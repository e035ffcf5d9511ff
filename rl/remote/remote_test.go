package remote_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// bench is a policy with servers.
type bench struct {
	dir     string // of the model
	policy  *policy.CausalLM
	servers []*fakeServer
	config  remote.Config
	lock    sync.Mutex
	said    []string
	hear    func(line string) // nil = nobody
}

func newBench(t testing.TB, servers int) *bench {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := filepath.Join(t.TempDir(), "model")
	must.Do(t, policy.TinyModel(dir, 1, 32, 5))
	b := &bench{dir: dir, policy: newPolicy(t, dir), config: remote.Config{
		Options: remote.Options{Dir: filepath.Join(t.TempDir(), "adapters"), Tolerance: 0.01, Timeout: 60}, Temperature: 0.7, Positions: 40,
		Retry: 5 * time.Millisecond, Lag: time.Minute,
	}}
	b.config.Warn = func(format string, args ...any) {
		b.lock.Lock()
		line := fmt.Sprintf(format, args...)
		b.said = append(b.said, line)
		b.lock.Unlock()
		if b.hear != nil {
			b.hear(line)
		}
	}
	for range servers {
		one := newFakeServer(t, dir)
		b.servers = append(b.servers, one)
		b.config.URLs = append(b.config.URLs, one.URL)
	}
	return b
}

func newPolicy(t testing.TB, dir string) *policy.CausalLM {
	t.Helper()
	return must.Open(policy.NewCausalLM(policy.Config{Dir: dir, R: 2, Alpha: 4, Seed: 3}))(t)
}

func (b *bench) start(t testing.TB) *remote.Servers {
	t.Helper()
	return must.Open(remote.New(t.Context(), b.policy, b.config))(t)
}

// learn changes the policy's weights.
func (b *bench) learn(t testing.TB) { b.move(t, 1./20) }

// unlearn reverts the last learn, as a new version with the old weights.
func (b *bench) unlearn(t testing.TB) { b.move(t, -1./20) }

func (b *bench) move(t testing.TB, by float32) {
	t.Helper()
	for i, v := range b.policy.Params() {
		values := must.Get(v.Read())(t)
		for j := range values {
			values[j] += by * float32((i*7+j*13)%11-5)
		}
		must.Do(t, v.Write(values))
	}
	b.policy.Changed()
}

var prompts = [][]int32{{5, 6, 7}, {8}, {9, 10, 11, 12}, {13, 14}, {15}, {16, 17, 18}}

func options() policy.GenerateOptions {
	return policy.GenerateOptions{Samples: 3, MaxNew: 10, Seed: 77, Sampling: torch.Sampling{Temperature: 0.7}}
}

// write returns the token ids that the servers generate, by prompt and sample.
func write(t testing.TB, w interface {
	Generate(context.Context, [][]int32, policy.GenerateOptions, func(int, []policy.Completion) error) error
}) (ids [][]int32) {
	t.Helper()
	next := 0
	must.Do(t, w.Generate(t.Context(), prompts, options(), func(i int, done []policy.Completion) error {
		expect.Same(t, next, i, "prompt %d is reported before prompt %d", i, next)
		next++
		for _, c := range done {
			ids = append(ids, c.IDs)
		}
		return nil
	}))
	return ids
}

func TestServersUseCurrentWeights(t *testing.T) {
	b := newBench(t, 2)
	s := b.start(t)
	before := write(t, s)
	b.learn(t)
	after := write(t, s)
	expect.Require(t, !cmp.Equal(before, after), "the weights have changed, and what is written has not")
	own := must.Get(b.policy.Score(t.Context(), [][]int32{prompts[0]}, after[:1], 0.7))(t)
	must.Do(t, s.Generate(t.Context(), prompts[:1], options(), func(_ int, done []policy.Completion) error {
		d := torchtest.MaxDiff(done[0].BehaviorLogProbs, own[0].LogProbs)
		expect.True(t, slices.Equal(done[0].IDs, after[0]) && d <= 1e-4, "log-probabilities differ from the policy's by %g", d)
		return nil
	}))
	seeds := map[int64]bool{}
	writing := 0
	for _, one := range b.servers {
		for _, o := range one.Orders {
			if o.Model == "base" {
				continue
			}
			expect.True(t, o.TopP != nil && o.TopK != nil && o.MinP != nil && o.RepetitionPenalty != nil && o.Temperature != nil && o.LogProbs != nil && *o.LogProbs == 0 && o.TokenIDs && slices.Equal(o.StopIDs, b.policy.EOS()), "a request relies on the server's defaults: %+v", o)
			if o.MaxTokens == 10 {
				seeds[o.Seed] = true
				writing++
			}
		}
		expect.True(t, len(one.Loaded) == 2 && one.Loaded[0] != one.Loaded[1], "adapters loaded: %v", one.Loaded)
	}
	expect.True(t, len(seeds) == len(prompts) && writing == 2*len(prompts)+1, "%d requests with %d seeds", writing, len(seeds))
	// An old version is unloaded immediately; its folder is removed with the next one.
	for range 2 {
		b.learn(t)
		write(t, s)
	}
	folders := must.Get(os.ReadDir(b.config.Dir))(t)
	if one := b.servers[0]; len(one.Loaded) != 4 || !slices.Equal(one.Unloaded, one.Loaded[:3]) || len(folders) != 2 {
		t.Errorf("loaded %v, unloaded %v, %d folders", one.Loaded, one.Unloaded, len(folders))
	}
}

// TestVersionsInUseStay: a running request keeps its version through any number of updates.
func TestVersionsInUseStay(t *testing.T) {
	b := newBench(t, 1)
	b.learn(t)
	s := b.start(t)
	want := write(t, s)
	p := must.Get(s.Publish(t.Context()))(t)
	for range 3 {
		b.learn(t)
		write(t, s)
	}
	one := b.servers[0]
	expect.Require(t, !slices.Contains(one.Unloaded, one.Loaded[0]), "unloaded %v while the first is in use", one.Unloaded)
	expect.Equal(t, want, write(t, p))
	p.Release()
	b.learn(t)
	write(t, s)
	one = b.servers[0]
	expect.True(t, slices.Contains(one.Unloaded, one.Loaded[0]), "unloaded %v, want the unused first version", one.Unloaded)
}

func TestIgnoredAdapterEndsTheRun(t *testing.T) {
	b := newBench(t, 1)
	s := b.start(t)
	write(t, s)
	b.servers[0].Lock()
	b.servers[0].Frozen = true
	b.servers[0].Unlock()
	b.learn(t)
	err := s.Generate(t.Context(), prompts, options(), func(int, []policy.Completion) error { return nil })
	expect.True(t, errors.Is(err, remote.ErrMismatch), "%v, want %v", err, remote.ErrMismatch)
}

// TestStepWaitsForAServer: without a healthy server the step logs that it waits. It continues with the first server that
// returns, which has lost its adapters.
func TestStepWaitsForAServer(t *testing.T) {
	for _, pinned := range []bool{false, true} {
		t.Run(fmt.Sprintf("pinned=%v", pinned), func(t *testing.T) {
			b := newBench(t, 2)
			b.learn(t)
			s := b.start(t)
			want := write(t, s)
			rise := b.servers[0].Die()
			b.servers[1].Die()
			b.servers[0].Forget()
			var once sync.Once
			b.hear = func(line string) {
				if strings.Contains(line, "the step waits") {
					once.Do(rise)
				}
			}
			var got [][]int32
			if !pinned {
				got = write(t, s)
			} else {
				p := must.Get(s.Publish(t.Context()))(t)
				done := make(chan struct{})
				go func() {
					defer close(done)
					got = write(t, p)
				}()
				must.Do(t, s.Tend(t.Context(), done))
				p.Release()
			}
			expect.Equal(t, want, got)
			said := strings.Join(b.said, "\n")
			expect.Contains(t, said, "sending its prompts to 1 others", "no other server is left, so the step waits", b.servers[0].URL+" is back")
		})
	}
}

func TestGenerateEndsWithItsContext(t *testing.T) {
	b := newBench(t, 1)
	s := b.start(t)
	b.servers[0].Die()
	ctx, cancel := context.WithCancel(t.Context())
	b.hear = func(string) { cancel() }
	err := s.Generate(ctx, prompts, options(), func(int, []policy.Completion) error { return nil })
	expect.True(t, errors.Is(err, context.Canceled), "%v", err)
}

// newRanks returns benches with the same policy that share servers, one per rank.
func newRanks(t *testing.T, size, servers int) []*bench {
	t.Helper()
	first := newBench(t, servers)
	first.config.Lag = time.Second // a removed adapter stays removed
	all := []*bench{first}
	for range size - 1 {
		b := &bench{policy: newPolicy(t, first.dir), config: first.config, servers: first.servers}
		b.config.Warn = func(format string, args ...any) { t.Errorf(format, args...) }
		all = append(all, b)
	}
	for rank, g := range disttest.Groups(t, size) {
		all[rank].config.Group = g
	}
	return all
}

// begun starts each rank's servers; closing them is collective.
func begun(t *testing.T, ranks []*bench) []*remote.Servers {
	t.Helper()
	all, errs := make([]*remote.Servers, len(ranks)), make([]error, len(ranks))
	disttest.Each(len(ranks), func(rank int) {
		all[rank], errs[rank] = remote.New(t.Context(), ranks[rank].policy, ranks[rank].config)
	})
	must.Do(t, errors.Join(errs...))
	return all
}

// share has all ranks publish their weights.
func share(t *testing.T, all []*remote.Servers) {
	t.Helper()
	errs := make([]error, len(all))
	disttest.Each(len(all), func(rank int) { errs[rank] = all[rank].Share(t.Context()) })
	must.Do(t, errors.Join(errs...))
}

// TestRanksShareServers: each rank gets the completions of a run on one rank. Only rank 0 loads and unloads adapters,
// the latter once no rank uses them.
func TestRanksShareServers(t *testing.T) {
	alone := newBench(t, 1)
	one := alone.start(t)
	ranks := newRanks(t, 3, 2)
	all := begun(t, ranks)
	for step := range 3 {
		want := write(t, one)
		share(t, all)
		disttest.Each(len(all), func(rank int) {
			expect.Equal(t, want, write(t, all[rank]), fmt.Sprintf("update %d, rank %d", step, rank))
		})
		alone.learn(t)
		for _, b := range ranks {
			b.learn(t)
		}
	}
	server := ranks[0].servers[0]
	expect.True(t, len(server.Loaded) == 3 && slices.Equal(server.Unloaded, server.Loaded[:2]), "loaded %v, unloaded %v", server.Loaded, server.Unloaded)

	// The last rank keeps using the third version while all train on.
	share(t, all)
	pinned := must.Get(all[2].Publish(t.Context()))(t)
	held := server.Loaded[3]
	want := write(t, pinned)
	for range 3 {
		for _, b := range ranks {
			b.learn(t)
		}
		share(t, all)
	}
	expect.Require(t, !slices.Contains(server.Unloaded, held), "%s is unloaded while a rank has something written by it", held)
	expect.Equal(t, want, write(t, pinned))
	pinned.Release()
	for _, b := range ranks {
		b.learn(t)
	}
	share(t, all)
	expect.True(t, slices.Contains(server.Unloaded, held), "unloaded %v, want the unused %s", server.Unloaded, held)

	disttest.Each(len(all), func(rank int) { write(t, all[rank]) })
	before := len(server.Unloaded)
	all[2].Close()
	all[1].Close()
	expect.Same(t, before, len(server.Unloaded), "ranks that leave unload %v, which is rank 0's to do", server.Unloaded[before:])
	all[0].Close()
	folders, err := os.ReadDir(ranks[0].config.Dir)
	expect.True(t, err == nil && len(folders) == 0 && len(server.Unloaded) == len(server.Loaded),
		"%d folders remain, %v; loaded %v, unloaded %v", len(folders), err, server.Loaded, server.Unloaded)
}

// TestRanksMustShareWeights: sampling with weights that the servers do not have is an error.
func TestRanksMustShareWeights(t *testing.T) {
	ranks := newRanks(t, 2, 1)
	all := begun(t, ranks)
	defer func() {
		for _, s := range all {
			s.Close()
		}
	}()
	for rank, b := range ranks {
		b.learn(t)
		expect.Error(t, all[rank].Generate(t.Context(), prompts, options(), nil), "the policy's weights changed after Share")
	}
}

// TestRanksStopOnRefusal: if rank 0 finds a server with another model, all ranks stop.
func TestRanksStopOnRefusal(t *testing.T) {
	ranks := newRanks(t, 2, 1)
	ranks[0].servers[0].Raw = true
	errs := make([]error, len(ranks))
	disttest.Each(len(ranks), func(rank int) { _, errs[rank] = remote.New(t.Context(), ranks[rank].policy, ranks[rank].config) })
	expect.True(t, errors.Is(errs[0], remote.ErrMismatch) && errs[1] != nil && errs[1].Error() == "rank 0: "+errs[0].Error(), "rank 0: %v\nrank 1: %v", errs[0], errs[1])
}
