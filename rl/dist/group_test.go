package dist_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/torch"
)

func TestGatherIsInTheOrderOfRanks(t *testing.T) {
	type part struct {
		Name   string
		Values []float64
	}
	groups := disttest.Groups(t, 3)
	want := []part{{Name: "0"}, {Name: "1", Values: []float64{math.NaN()}}, {Name: "2", Values: []float64{math.Inf(1), 0.1}}}
	disttest.Each(3, func(rank int) {
		got, err := dist.Gather(groups[rank], want[rank])
		diff := cmp.Diff(want, got, cmpopts.EquateNaNs())
		expect.True(t, err == nil && diff == "", "rank %d: %v, (-want +got):\n%s", rank, err, diff)
		first, err := dist.First(groups[rank], part{Name: fmt.Sprint(rank)})
		expect.True(t, err == nil && first.Name == "0", "rank %d: first %v, %v", rank, first, err)
	})
	told := groups[0].Traffic()
	expect.True(t, told.Bytes != 0 && told.Gradients == 0 && told.Exchanges >= 2, "rank 0 counts %+v", told)
}

func TestTrafficSince(t *testing.T) {
	got := dist.Traffic{Exchanges: 5, Gradients: 30, Bytes: 40, Spent: 7}.Since(dist.Traffic{Exchanges: 2, Gradients: 10, Bytes: 15, Spent: 4})
	expect.Equal(t, dist.Traffic{Exchanges: 3, Gradients: 20, Bytes: 25, Spent: 3}, got)
}

func TestSharesAreAllOfIt(t *testing.T) {
	groups := disttest.Groups(t, 3)
	for _, n := range []int{0, 1, 2, 3, 7} {
		next := 0
		for _, g := range groups {
			from, to := g.Share(n)
			expect.True(t, from == next && to >= from && to-from <= n/3+1, "rank %d has [%d, %d) of %d", g.Rank(), from, to, n)
			next = to
		}
		expect.Same(t, n, next, "%d of %d are shared out", next, n)
	}
	if from, to := (*dist.Group)(nil).Share(5); from != 0 || to != 5 {
		t.Errorf("a single process has [%d, %d) of 5", from, to)
	}
}

func TestGradientsAreSummed(t *testing.T) {
	groups := disttest.Groups(t, 2)
	before := groups[0].Traffic()
	disttest.Each(2, func(rank int) {
		p, err := torch.Parameter([]float32{1, 2}, 2)
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		err = torch.Do(torch.Train, func(s *torch.Scope) error {
			s.Backward(s.Scale(s.Sum(p.T()), float64(rank+1)))
			return nil
		})
		if err == nil {
			err = groups[rank].SumGrads([]*torch.Var{p})
		}
		var got []float32
		if err == nil {
			err = torch.Do(torch.NoGrad, func(s *torch.Scope) error {
				grad, _ := s.Grad(p)
				got = s.Read(grad)
				return nil
			})
		}
		expect.True(t, slices.Equal(got, []float32{3, 3}) && err == nil, "rank %d: gradient %v, %v", rank, got, err)
	})
	// Two numbers, plus one that says whether there is a gradient.
	sent := groups[0].Traffic().Since(before)
	expect.True(t, sent.Gradients == 12 && sent.Bytes == 12 && sent.Exchanges == 1, "rank 0 counts %+v", sent)
}

func TestFailuresAreAllsAndNamed(t *testing.T) {
	groups := disttest.Groups(t, 3)
	disttest.Each(3, func(rank int) {
		var own error
		if rank == 1 {
			own = errors.New("no such row")
		}
		_, err := dist.Together(groups[rank], rank, own)
		expect.True(t, err != nil && (rank != 1 || err == own) && (rank == 1 || err.Error() == "rank 1: no such row"), "rank %d: %v", rank, err)
	})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	disttest.Each(3, func(rank int) {
		own := t.Context()
		if rank == 2 {
			own = ctx
		}
		expect.NoError(t, groups[rank].Agree(t.Context()), "rank %d", rank)
		err := groups[rank].Agree(own)
		expect.True(t, errors.Is(err, context.Canceled), "rank %d, with one rank stopped: %v", rank, err)
		whole := groups[rank].Whole(own)
		expect.True(t, whole.Err() == nil && dist.Until(whole) == own, "rank %d: completed work ends with %v, or forgets its context", rank, whole.Err())
	})
}

// TestMeetingPortCloses: once all ranks have joined, the meeting port closes, and the remaining listeners accept only
// the group's network.
func TestMeetingPortCloses(t *testing.T) {
	before := listening(t)
	port := disttest.FreePort(t)
	groups := make([]*dist.Group, 2)
	disttest.Each(2, func(rank int) {
		var err error
		groups[rank], err = dist.Join(t.Context(), dist.Place{Rank: rank, Size: 2, Host: "127.0.0.1", Port: port}, dist.Member{}, time.Minute)
		expect.True(t, err == nil, "%v", err)
	})
	if t.Failed() {
		return
	}
	defer disttest.Each(2, func(rank int) { groups[rank].Close() })
	for inode, at := range listening(t) {
		if _, old := before[inode]; old {
			continue
		}
		// Addresses are hexadecimal, with the bytes of an IPv4 address in reverse.
		address, number, _ := strings.Cut(at, ":")
		expect.True(t, address == "0100007F" && number != fmt.Sprintf("%04X", port), "something listens at %s", at)
	}
}

// listening returns this process's listening addresses by socket number.
func listening(t *testing.T) map[string]string {
	t.Helper()
	mine := map[string]bool{}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("there is no /proc")
	}
	for _, f := range files {
		if target, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(target, "socket:[") {
			mine[strings.Trim(target, "socket:[]")] = true
		}
	}
	all := map[string]string{}
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // a machine without IPv6
		}
		for _, line := range strings.Split(string(text), "\n") {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && mine[f[9]] {
				all[f[9]] = f[1]
			}
		}
	}
	return all
}

// TestMembersAreCompared: each rank reports which rank does not match, and why.
func TestMembersAreCompared(t *testing.T) {
	fits := dist.Member{Version: "1", Settings: map[string]string{"seed": "1"}}
	for _, test := range []struct {
		name  string
		other dist.Member
		want  string
	}{
		{"version", dist.Member{Version: "2"}, "rank 1 runs version 2, rank 0 runs 1"},
		{"setting", dist.Member{Version: "1", Settings: map[string]string{"seed": "7"}}, "rank 1 has seed 7, rank 0 has 1"},
		{"fault", dist.Member{Fault: "unknown option"}, "rank 1 cannot take part: unknown option"},
		{"missing setting", dist.Member{Version: "1"}, "rank 1 has seed nothing, rank 0 has 1"},
		{"more settings", dist.Member{Version: "1", Settings: map[string]string{"seed": "1", "top_k": "3"}}, "rank 1 has top_k 3, rank 0 has nothing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := disttest.Join(t, 2, time.Minute, func(rank int) dist.Member { return []dist.Member{fits, test.other}[rank] })
			for _, err := range errs {
				expect.Error(t, err, test.want)
			}
		})
	}
}

// TestRankThatEndsBeforeAllMet: the others do not wait for the rest of the timeout.
func TestRankThatEndsBeforeAllMet(t *testing.T) {
	port := disttest.FreePort(t)
	ctx, leave := context.WithCancel(t.Context())
	errs := make([]error, 2)
	began := time.Now()
	disttest.Each(2, func(rank int) { // rank 2 never comes
		place := dist.Place{Rank: rank, Size: 3, Host: "127.0.0.1", Port: port}
		own := t.Context()
		if rank == 1 {
			own = ctx
			time.AfterFunc(time.Second, leave)
		}
		_, errs[rank] = dist.Join(own, place, dist.Member{}, time.Minute)
	})
	spent := time.Since(began)
	expect.True(t, spent <= 20*time.Second && errs[0] != nil && strings.Contains(errs[0].Error(), "rank 1 ended before all ranks had joined"), "after %v: %v", spent, errs[0])
}

func TestJoinRefuses(t *testing.T) {
	busy := must.Open(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := busy.Addr().(*net.TCPAddr).Port
	for _, test := range []struct {
		name  string
		place dist.Place
		want  string
	}{
		{"port in use", dist.Place{Size: 2, Host: "127.0.0.1", Port: port}, fmt.Sprintf("port %d of 127.0.0.1 is in use", port)},
		{"alone", dist.Place{Size: 2, Host: "127.0.0.1", Port: disttest.FreePort(t)}, "rank 1 did not join"},
		{"nobody serves", dist.Place{Rank: 1, Size: 2, Host: "127.0.0.1", Port: disttest.FreePort(t)}, "rank 1 of 2: "},
		{"no such host", dist.Place{Rank: 1, Size: 2, Host: "no.such.host.invalid", Port: 1}, "no.such.host.invalid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect.Failure(dist.Join(t.Context(), test.place, dist.Member{}, time.Second))(t, test.want)
		})
	}
}
