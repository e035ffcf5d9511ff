// Package remote samples rollouts on servers with OpenAI's API that return token ids and load LoRA adapters at run time,
// such as rltrain serve and vLLM. After each update the servers load the policy's adapter under a new name, so the name of a
// version always identifies its weights.
package remote

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/jsonapi"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/policy"
)

// Options are the options for rollout servers.
type Options struct {
	URLs      []string `option:"rollout_url" incidental:"true" help:"rollout servers, http://host:port, that serve this model with LoRA enabled: rltrain serve or vLLM; empty = sample in this process. ROLLOUT_API_KEY sets the API key"`
	Dir       string   `option:"rollout_dir" arg:"DIR" needs:"rollout_url" incidental:"true" help:"folder for the adapters, which the servers read"`
	ServerDir string   `option:"rollout_server_dir" arg:"DIR" needs:"rollout_url" incidental:"true" help:"what the servers call that folder; empty = the same"`
	Model     string   `option:"rollout_model" needs:"rollout_url" incidental:"true" help:"what the servers call the model; empty = the first that they name"`
	Tolerance float64  `option:"rollout_tolerance" default:"0.05" range:"(0,10]" needs:"rollout_url" incidental:"true" help:"mean difference in nats between the log-probabilities of servers and our own that is still the same model"`
	Timeout   float64  `option:"rollout_timeout" default:"600" range:"[1,1e6]" needs:"rollout_url" incidental:"true" help:"seconds that a server may take for the answers to one prompt"`
}

// Check rejects invalid addresses.
func (o Options) Check() error {
	for _, text := range o.URLs {
		if !jsonapi.IsAddress(text) {
			return &envs.OptionError{Option: "rollout_url", Err: fmt.Errorf("%.200q is not an address such as http://host:8000", text)}
		}
	}
	if len(o.URLs) > 0 && o.Dir == "" {
		return &envs.OptionError{Option: "rollout_url", Err: errors.New("needs --rollout-dir, the folder from which the servers load adapters")}
	}
	return nil
}

// Config configures Servers.
type Config struct {
	Options
	Key         string
	Temperature float64 // of the rollouts
	Positions   int     // tokens of the longest prompt and completion
	InFlight    int     // maximum concurrent requests per server; 0 = 64
	Lag         time.Duration
	Retry       time.Duration                    // between checks of a server that is down; 0 = 1 s
	Group       *dist.Group                      // ranks that share the servers; nil = one process
	Warn        func(format string, args ...any) // called on the policy's thread
}

// Servers sample completions for a policy.
type Servers struct {
	config Config
	policy *policy.CausalLM
	run    string // identifies the adapters of this process
	ctx    context.Context
	stop   context.CancelFunc

	lock     sync.Mutex
	changed  chan struct{} // closed when a server becomes available
	servers  []*server
	versions []*version      // oldest first
	shared   *version        // version of the last Share
	held     map[string]bool // versions in use by other ranks
	made     int
	unsaid   []string
}

// version is a snapshot of the adapter.
type version struct {
	name, dir string
	of        uint64 // policy.Version
	users     int    // running generations
	unloaded  bool
}

// ErrMismatch reports a server that does not sample with the policy's weights.
var ErrMismatch = errors.New("the server does not sample this policy")

// New connects to the servers and compares the log-probs of a few samples with those of the policy. A server with another
// model, tokenizer or temperature is an error. Call New, Generate, Publish and Tend on the policy's thread.
func New(ctx context.Context, p *policy.CausalLM, c Config) (*Servers, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	c.InFlight, c.Retry, c.Lag = cmp.Or(c.InFlight, 64), cmp.Or(c.Retry, time.Second), cmp.Or(c.Lag, 2*time.Minute)
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	c.Dir, c.ServerDir = dir, cmp.Or(c.ServerDir, dir)
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	s := &Servers{config: c, policy: p, run: hex.EncodeToString(random[:]), changed: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: c.InFlight, IdleConnTimeout: time.Minute}}
	for _, address := range c.URLs {
		s.servers = append(s.servers, &server{
			url: strings.TrimRight(address, "/"), key: c.Key, client: client, limit: time.Duration(c.Timeout * float64(time.Second)), lag: c.Lag, loaded: map[string]bool{},
		})
	}
	if err := s.begin(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Policy returns the policy that the servers sample for.
func (s *Servers) Policy() *policy.CausalLM { return s.policy }

// admit makes a server available after it has passed the check.
func (s *Servers) admit(ctx context.Context, one *server, how trial) error {
	if err := one.discover(ctx, s.config.Model, s.config.Positions); err != nil {
		return err
	}
	v, err := s.refresh()
	if err != nil {
		return err
	}
	s.lock.Lock()
	clear(one.loaded) // it may have restarted
	s.lock.Unlock()
	if err := s.ensure(ctx, one, v); err != nil {
		return err
	}
	if err := s.try(ctx, one, v, how); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	one.up, one.failed = true, 0
	s.rouse()
	return nil
}

// rouse wakes waiters for a server. The lock must be held.
func (s *Servers) rouse() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// refresh returns the version of the current weights; rank 0 saves it if it is new.
func (s *Servers) refresh() (*version, error) {
	if n := len(s.versions); n > 0 && s.versions[n-1].of == s.policy.Version() {
		return s.versions[n-1], nil
	}
	if s.config.Group.Rank() > 0 {
		return nil, errNotShared
	}
	s.made++
	v := &version{name: fmt.Sprintf("rltrain-%s-%d", s.run, s.made), of: s.policy.Version()}
	v.dir = filepath.Join(s.config.Dir, v.name)
	if err := s.policy.SaveAdapter(v.dir); err != nil {
		return nil, fmt.Errorf("saving the adapter for the servers: %w", err)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.versions = append(s.versions, v)
	return v, nil
}

// ensure loads an adapter on a server, unless it has it.
func (s *Servers) ensure(ctx context.Context, one *server, v *version) error {
	one.loading.Lock()
	defer one.loading.Unlock()
	s.lock.Lock()
	loaded := one.loaded[v.name]
	s.lock.Unlock()
	if loaded {
		return nil
	}
	if err := one.load(ctx, v.name, filepath.Join(s.config.ServerDir, v.name)); err != nil {
		return err
	}
	s.lock.Lock()
	one.loaded[v.name] = true
	s.lock.Unlock()
	return nil
}

// publish loads the current weights on all available servers and unloads unused versions.
func (s *Servers) publish(ctx context.Context) error {
	v, err := s.refresh()
	if err != nil {
		return err
	}
	if err := s.retire(ctx, v); err != nil {
		return err
	}
	for _, one := range s.living() {
		err := s.ensure(ctx, one, v)
		if err == nil {
			err = s.try(ctx, one, v, brief)
		}
		if err == nil {
			continue
		}
		if !passing(err) {
			return fmt.Errorf("rollout server %s: %w", one.url, err)
		}
		s.down(one, err)
	}
	return nil
}

// passing reports whether a retry or another server may avoid an error.
func passing(err error) bool {
	var t jsonapi.Transient
	return errors.As(err, &t) || is(err, http.StatusNotFound)
}

func (s *Servers) living() (all []*server) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, one := range s.servers {
		if one.up {
			all = append(all, one)
		}
	}
	return all
}

// retire unloads unused versions except the last. It removes their folders one version later, because a server may still
// read them.
func (s *Servers) retire(ctx context.Context, newest *version) error {
	s.lock.Lock()
	var unload, remove []*version
	s.versions = slices.DeleteFunc(s.versions, func(v *version) bool {
		switch {
		case v == newest || v.users > 0 || s.held[v.name]:
			return false
		case v.unloaded:
			remove = append(remove, v)
			return true
		}
		v.unloaded = true
		unload = append(unload, v)
		return false
	})
	s.lock.Unlock()
	for _, v := range unload {
		for _, one := range s.living() {
			s.lock.Lock()
			loaded := one.loaded[v.name]
			delete(one.loaded, v.name)
			s.lock.Unlock()
			if loaded || s.config.Group.Size() > 1 { // another rank may have loaded it
				if err := one.unload(ctx, v.name); err != nil && ctx.Err() == nil {
					s.say("warning: rollout server %s could not unload an old adapter: %v", one.url, err)
				}
			}
		}
	}
	for _, v := range remove {
		if err := os.RemoveAll(v.dir); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// down marks a server as unavailable until it responds again.
func (s *Servers) down(one *server, err error) {
	s.lock.Lock()
	was := one.up
	one.up = false
	one.failed++
	one.retryAt = time.Now().Add(min(s.config.Retry<<min(one.failed-1, 5), time.Minute))
	left := 0
	for _, other := range s.servers {
		if other.up {
			left++
		}
	}
	s.lock.Unlock()
	switch {
	case !was:
	case left > 0:
		s.say("warning: check rollout server %s: %v; sending its prompts to %d others", one.url, err, left)
	default:
		s.say("warning: check rollout server %s: %v; no other server is left, so the step waits", one.url, err)
	}
}

// say queues a message for tell, which runs on the policy's thread.
func (s *Servers) say(format string, args ...any) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.unsaid = append(s.unsaid, fmt.Sprintf(format, args...))
}

func (s *Servers) tell() {
	s.lock.Lock()
	all := s.unsaid
	s.unsaid = nil
	s.lock.Unlock()
	for _, one := range all {
		s.config.Warn("%s", one)
	}
}

// Tend waits until done, and re-admits servers that respond again.
func (s *Servers) Tend(ctx context.Context, done <-chan struct{}) error {
	look := time.NewTicker(s.config.Retry)
	defer look.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			s.revive(ctx)
		}
	}
}

// revive checks unavailable servers whose retry is due.
func (s *Servers) revive(ctx context.Context) {
	s.tell()
	defer s.tell()
	for _, one := range s.servers {
		s.lock.Lock()
		due := !one.up && time.Now().After(one.retryAt)
		s.lock.Unlock()
		if !due {
			continue
		}
		err := s.admit(ctx, one, brief)
		switch {
		case err == nil:
			s.say("rollout server %s is back", one.url)
		case ctx.Err() != nil:
			return
		default:
			if errors.Is(err, ErrMismatch) {
				s.say("warning: check rollout server %s: it responds again but fails its test: %v", one.url, err)
			}
			s.down(one, err)
		}
	}
}

// Context ends when the servers are closed.
func (s *Servers) Context() context.Context { return s.ctx }

// Close unloads all adapters from the servers.
func (s *Servers) Close() {
	s.stop()
	if s.config.Group.Rank() == 0 { // rank 0 owns the versions
		s.takeBack()
	}
	for _, one := range s.servers {
		one.client.CloseIdleConnections()
	}
}

func (s *Servers) takeBack() {
	ctx, cancel := context.WithTimeout(context.Background(), quickly)
	defer cancel()
	for _, v := range s.versions {
		for _, one := range s.living() {
			s.lock.Lock()
			loaded := one.loaded[v.name]
			s.lock.Unlock()
			if loaded {
				_ = one.unload(ctx, v.name) // the server may be down
			}
		}
		_ = os.RemoveAll(v.dir) // best effort
	}
}
