package remote

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/dist/disttest"
)

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
func begun(t *testing.T, ranks []*bench) []*Servers {
	t.Helper()
	all, errs := make([]*Servers, len(ranks)), make([]error, len(ranks))
	disttest.Each(len(ranks), func(rank int) { all[rank], errs[rank] = New(t.Context(), ranks[rank].policy, ranks[rank].config) })
	must.Do(t, errors.Join(errs...))
	return all
}

// share has all ranks publish their weights.
func share(t *testing.T, all []*Servers) {
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
		err := all[rank].Generate(t.Context(), prompts, options(), nil)
		expect.True(t, errors.Is(err, errNotShared), "rank %d: %v", rank, err)
	}
}

// TestRanksStopOnRefusal: if rank 0 finds a server with another model, all ranks stop.
func TestRanksStopOnRefusal(t *testing.T) {
	ranks := newRanks(t, 2, 1)
	ranks[0].servers[0].Raw = true
	errs := make([]error, len(ranks))
	disttest.Each(len(ranks), func(rank int) { _, errs[rank] = New(t.Context(), ranks[rank].policy, ranks[rank].config) })
	expect.True(t, errors.Is(errs[0], ErrMismatch) && errs[1] != nil && errs[1].Error() == "rank 0: "+errs[0].Error(), "rank 0: %v\nrank 1: %v", errs[0], errs[1])
}
