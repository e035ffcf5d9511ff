package dist

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rltrain/rltrain/torch"
)

// door is what rank 0 puts into the store: its address, and the token of the group.
const door = "door"

// Join waits for all ranks, checks that they match rank 0, and connects them. It then closes the rendezvous ports. timeout
// limits the wait here, and later the wait for a rank that hangs.
//
// Errors name the rank that is missing or does not match.
func Join(ctx context.Context, p Place, m Member, timeout time.Duration) (*Group, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not all %d ranks joined %s within %v", p.Size, p.address(), timeout))
	defer cancel()
	deadline, _ := ctx.Deadline()
	fail := func(err error) error {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
			err = context.Cause(ctx)
			if err == nil {
				err = os.ErrDeadlineExceeded
			}
		}
		return fmt.Errorf("%v: %w", &p, err)
	}
	own, err := p.ownAddress(ctx)
	if err != nil {
		return nil, fail(err)
	}
	if p.Rank != 0 || p.Served {
		if err := p.served(ctx); err != nil {
			return nil, fail(err)
		}
	}
	store, err := within(ctx, func() (*torch.Store, error) { return p.open(own, time.Until(deadline)) })
	if err != nil {
		return nil, fail(err)
	}
	links, address, err := p.meet(ctx, store, own, m)
	if err != nil {
		return nil, fail(err)
	}
	w := newWatch(p.Rank, timeout, links)
	w.start()
	g := &Group{place: p, timeout: timeout, watch: w}
	if err := g.exchange(func() error {
		// The watch detects a hang first and names the rank; gloo's limit is longer.
		native, err := store.Group(address, p.Rank, p.Size, 2*timeout)
		if err != nil {
			return err
		}
		g.native = native
		_, err = native.Gather([]byte{byte(p.Rank)}) // after this, no rank needs the store
		return err
	}); err != nil {
		return nil, err
	}
	store.Close()
	return g, nil
}

// within returns the result of do, or ctx's error. A store whose server hangs may block longer than its own timeout.
func within[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var nothing T
		return nothing, ctx.Err()
	}
}

// ownAddress returns the address of this machine on the network towards the rendezvous.
func (p *Place) ownAddress(ctx context.Context) (string, error) {
	resolver := net.Resolver{}
	lookup, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	if p.InCluster && p.Rank == 0 && p.loopback() {
		// Kubeflow calls the machine of rank 0 localhost in its own pod.
		name, err := os.Hostname()
		if err != nil {
			return "", err
		}
		found, err := resolver.LookupHost(lookup, name)
		if err != nil || len(found) == 0 {
			return "", fmt.Errorf("address of this pod, %s: %w", name, err)
		}
		return found[0], nil
	}
	conn, err := (&net.Dialer{Timeout: lookupTime}).DialContext(lookup, "udp", p.address()) // sends nothing
	if err != nil {
		return "", fmt.Errorf("MASTER_ADDR %s: %w", p.Host, err)
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}

func (p *Place) loopback() bool {
	ip := net.ParseIP(p.Host)
	return p.Host == "localhost" || ip != nil && ip.IsLoopback()
}

// retryEvery is how often a rank looks whether the store is served yet.
const retryEvery = 100 * time.Millisecond

// served waits until something serves the store. libtorch would wait too, but print a stack trace when it gives up.
func (p *Place) served(ctx context.Context) error {
	retry := time.NewTicker(retryEvery)
	defer retry.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.address())
		if err == nil {
			return conn.Close()
		}
		if dns := (*net.DNSError)(nil); errors.As(err, &dns) && dns.IsNotFound {
			return fmt.Errorf("MASTER_ADDR %s: %w", p.Host, err)
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return fmt.Errorf("no store at %s, where rank 0 should serve it: %w", p.address(), cmp.Or(context.Cause(ctx), err))
		}
	}
}

// open opens the store. Rank 0 serves it, only on the rendezvous address, unless the launcher does.
func (p *Place) open(own string, timeout time.Duration) (*torch.Store, error) {
	prefix := "rltrain/" + p.Attempt + "/"
	if p.Rank != 0 || p.Served {
		store, err := torch.OpenStore(p.Host, p.Port, -1, prefix, timeout)
		if err != nil {
			return nil, fmt.Errorf("store at %s: %w", p.address(), err)
		}
		return store, nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(own, fmt.Sprint(p.Port)))
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("port %d of %s is in use; set another MASTER_PORT for all ranks", p.Port, own)
		}
		return nil, fmt.Errorf("MASTER_ADDR %s, MASTER_PORT %d: rank 0 cannot listen there: %w", p.Host, p.Port, err)
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fd, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(fd)
	return torch.OpenStore(own, p.Port, fd, prefix, timeout)
}

// meet admits the ranks that match rank 0. It returns the links to them and this machine's address for the group.
func (p *Place) meet(ctx context.Context, store *torch.Store, own string, m Member) (map[int]*link, string, error) {
	if p.Rank == 0 {
		links, err := p.receive(ctx, store, own, m)
		return links, own, err
	}
	deadline, _ := ctx.Deadline()
	said, err := within(ctx, func() (string, error) { return store.Get(door, time.Until(deadline)) })
	if err != nil {
		return nil, "", fmt.Errorf("rank 0 did not join %s: %w", p.address(), err)
	}
	at, token, _ := strings.Cut(said, " ")
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, "", fmt.Errorf("rank 0 at %s: %w", at, err)
	}
	l := newLink(conn, time.Until(deadline))
	if err := l.send(message{Kind: hello, Rank: p.Rank, Size: p.Size, Token: token, Member: &m}); err != nil {
		return nil, "", fmt.Errorf("rank 0 at %s: %w", at, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	answer, err := l.receive(deadline)
	if stop(); err != nil {
		return nil, "", fmt.Errorf("rank 0 did not admit this rank: %w", cmp.Or(ctx.Err(), err))
	}
	if answer.Kind != welcome {
		return nil, "", errors.New(answer.Text)
	}
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return map[int]*link{0: l}, host, err
}

// guest is a connection with the right token, and its hello.
type guest struct {
	link  *link
	hello message
}

// greet accepts connections until the listener is closed. It does not answer connections without the token.
func greet(ctx context.Context, listener net.Listener, token string) <-chan guest {
	deadline, _ := ctx.Deadline()
	guests := make(chan guest)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed: all ranks joined, or a timeout
			}
			go func() {
				l := newLink(conn, time.Until(deadline))
				said, err := l.receive(deadline)
				if err != nil || said.Kind != hello || said.Member == nil || subtle.ConstantTimeCompare([]byte(said.Token), []byte(token)) != 1 {
					conn.Close()
					return
				}
				select {
				case guests <- guest{l, said}:
				case <-ctx.Done():
					conn.Close()
				}
			}()
		}
	}()
	return guests
}

// lookEvery is how often rank 0 looks whether a rank that has joined is still there.
const lookEvery = 100 * time.Millisecond

// receive admits the other ranks on rank 0.
func (p *Place) receive(ctx context.Context, store *torch.Store, own string, m Member) (map[int]*link, error) {
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, err
	}
	token := hex.EncodeToString(secret[:])
	listener, err := net.Listen("tcp", net.JoinHostPort(own, "0"))
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	if err := store.Set(door, listener.Addr().String()+" "+token); err != nil {
		return nil, err
	}
	guests := greet(ctx, listener, token)
	links := map[int]*link{}
	refusal := ""
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for len(links) < p.Size-1 && refusal == "" {
		select {
		case <-look.C:
			for _, r := range slices.Sorted(maps.Keys(links)) {
				if links[r].ended() {
					refusal = fmt.Sprintf("rank %d ended before all ranks had joined", r)
					break
				}
			}
		case <-ctx.Done():
			var missing []string
			for r := 1; r < p.Size; r++ {
				if links[r] == nil {
					missing = append(missing, fmt.Sprint(r))
				}
			}
			refusal = fmt.Sprintf("rank %s did not join %s in time", strings.Join(missing, ", "), p.address())
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
		case g := <-guests:
			r := g.hello.Rank
			switch {
			case g.hello.Size != p.Size:
				refusal = fmt.Sprintf("rank %d has world size %d, rank 0 has %d", r, g.hello.Size, p.Size)
			case r < 1 || r >= p.Size || links[r] != nil:
				refusal = fmt.Sprintf("two processes have rank %d", r)
			default:
				refusal = g.hello.Member.differs(m, r)
			}
			if links[r] == nil {
				links[r] = g.link
			} else if refusal != "" {
				_ = g.link.send(message{Kind: failed, Text: refusal})
			}
		}
	}
	answer := message{Kind: welcome}
	if refusal != "" {
		answer = message{Kind: failed, Text: refusal}
	}
	for _, r := range slices.Sorted(maps.Keys(links)) {
		if err := links[r].send(answer); err != nil && refusal == "" {
			refusal = fmt.Sprintf("lost rank %d: %v", r, err)
		}
	}
	if refusal != "" {
		return nil, errors.New(refusal)
	}
	return links, nil
}
