// Package remote has servers write what a policy is to learn from: any that speak OpenAI's API, return token ids and take
// LoRA adapters while they run, as `rltrain serve` and vLLM do. After each update the policy's adapter goes to the servers
// under a name of its own, so that nothing is ever written by weights other than those that its name says.
package remote

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/policy"
)

// Options are what users say of servers.
type Options struct {
	URLs      []string `option:"rollout_url" incidental:"true" help:"servers that write the answers, http://host:port, with this model and LoRA adapters switched on: rltrain serve or vLLM; empty = this process writes them. A key goes into the variable ROLLOUT_API_KEY"`
	Dir       string   `option:"rollout_dir" arg:"DIR" needs:"rollout_url" incidental:"true" help:"folder for the adapters, which the servers read"`
	ServerDir string   `option:"rollout_server_dir" arg:"DIR" needs:"rollout_url" incidental:"true" help:"what the servers call that folder; empty = the same"`
	Model     string   `option:"rollout_model" needs:"rollout_url" incidental:"true" help:"what the servers call the model; empty = the first that they name"`
	Tolerance float64  `option:"rollout_tolerance" default:"0.05" range:"(0,10]" needs:"rollout_url" incidental:"true" help:"mean difference in nats between the log-probabilities of servers and our own that is still the same model"`
	Timeout   float64  `option:"rollout_timeout" default:"600" range:"[1,1e6]" needs:"rollout_url" incidental:"true" help:"seconds that a server may take for the answers to one prompt"`
}

// Check refuses addresses that are none.
func (o Options) Check() error {
	for _, text := range o.URLs {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
			return &envs.OptionError{Option: "rollout_url", Err: fmt.Errorf("%.200q is no address such as http://host:8000", text)}
		}
	}
	if len(o.URLs) > 0 && o.Dir == "" {
		return &envs.OptionError{Option: "rollout_url", Err: errors.New("needs --rollout-dir, a folder that the servers read adapters from")}
	}
	return nil
}

// Config is what servers need to know.
type Config struct {
	Options
	Key         string
	Temperature float64 // of what is learnt from
	Positions   int     // of the longest prompt with its answer
	InFlight    int     // requests to a server at the same time; 0 = 64
	Lag         time.Duration
	Retry       time.Duration                    // between looks at a server that does not answer; 0 = a second
	Group       *dist.Group                      // the ranks that the servers write for; nil = this process alone
	Warn        func(format string, args ...any) // is called on the policy's thread
}

// Servers write for a policy.
type Servers struct {
	config Config
	policy *policy.CausalLM
	run    string // tells the adapters of this process from all others
	ctx    context.Context
	stop   context.CancelFunc

	lock     sync.Mutex
	changed  chan struct{} // closed when a server comes up, or has room
	servers  []*server
	versions []*version      // the newest last
	shared   *version        // the last that Share has given them
	held     map[string]bool // names of those that other ranks use
	made     int
	unsaid   []string
}

// version is an adapter as it was at some time.
type version struct {
	name, dir string
	of        uint64 // policy.Version
	users     int    // generations under way
	unloaded  bool
}

// ErrMismatch is the error of a server that writes with something else than the policy's weights.
var ErrMismatch = errors.New("the server does not sample this policy")

// New finds the servers and has each write a little, of which the policy thinks itself: a server of another model, of
// another tokenizer, or with log-probabilities of another temperature is an error. It must be called, as Generate, Publish
// and Tend, on the thread where the policy computes.
func New(ctx context.Context, p *policy.CausalLM, c Config) (*Servers, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	c.InFlight, c.Retry, c.Lag = cmp.Or(c.InFlight, 64), cmp.Or(c.Retry, time.Second), cmp.Or(c.Lag, 2*time.Minute)
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	c.Dir = dir
	if c.ServerDir == "" {
		c.ServerDir = dir
	}
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

// Policy is the policy that the servers write for.
func (s *Servers) Policy() *policy.CausalLM { return s.policy }

// admit lets a server write once it has shown that it writes as the policy does.
func (s *Servers) admit(ctx context.Context, one *server, how trial) error {
	if err := one.discover(ctx, s.config.Model, s.config.Positions); err != nil {
		return err
	}
	v, err := s.refresh()
	if err != nil {
		return err
	}
	s.lock.Lock()
	clear(one.loaded) // it may be another process by now
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

// rouse wakes those that wait for a server; under the lock.
func (s *Servers) rouse() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// refresh is the version of the policy's weights as they are, which rank 0 writes if it is new.
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
		return nil, fmt.Errorf("writing the adapter for the servers: %w", err)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.versions = append(s.versions, v)
	return v, nil
}

// ensure has a server load an adapter that it does not have.
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

// publish gives the weights as they are to all servers that are up, and takes back what nobody needs.
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

// passing tells an error that other servers, or later tries, may not have.
func passing(err error) bool {
	var t transient
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

// retire unloads the versions before the last that nobody uses. Their folders go one version later: a server may still be
// reading.
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
			if loaded || s.config.Group.Size() > 1 { // another rank may have had it loaded
				if err := one.unload(ctx, v.name); err != nil && ctx.Err() == nil {
					s.say("warning: rollout server %s keeps an old adapter: %v", one.url, err)
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

// down takes a server out until it answers again.
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
		s.say("warning: rollout server %s is left out: %v; its prompts go to %d others", one.url, err, left)
	default:
		s.say("warning: rollout server %s is left out: %v; there is no other, so the step waits for one", one.url, err)
	}
}

// say keeps a message for tell, which is called on the policy's thread.
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

// Tend waits until done, and takes servers back that answer again.
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

// revive looks at the servers that are down, where their time has come.
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
			s.say("rollout server %s answers again", one.url)
		case ctx.Err() != nil:
			return
		default:
			if errors.Is(err, ErrMismatch) {
				s.say("warning: rollout server %s answers again but stays out: %v", one.url, err)
			}
			s.down(one, err)
		}
	}
}

// Context ends when the servers are closed.
func (s *Servers) Context() context.Context { return s.ctx }

// Close takes back all that the servers were given.
func (s *Servers) Close() {
	s.stop()
	if s.config.Group.Rank() == 0 { // the versions are its
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
				_ = one.unload(ctx, v.name) // it may be gone by now
			}
		}
		_ = os.RemoveAll(v.dir) // a folder that stays is a nuisance, no fault
	}
}
