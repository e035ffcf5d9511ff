package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/rltrain/rltrain/rl/dist"
)

// With several ranks, rank 0 loads and unloads the adapters on the servers, and each rank requests its part of the
// completions. A single process is rank 0.

// errNotShared reports weights that rank 0 has not loaded on the servers.
var errNotShared = errors.New("the policy's weights changed after Share")

// news is what rank 0 sends to the others about its versions.
type news struct {
	Name string // newest version
	Of   uint64
	Kept []string // all versions on the servers
}

// begin loads the first version on the servers. Rank 0 checks them fully; the others check that they reach the same model.
func (s *Servers) begin(ctx context.Context) error {
	var own news
	var err error
	if s.config.Group.Rank() == 0 {
		own, err = s.first(ctx)
	}
	all, err := dist.Together(s.config.Group, own, err)
	if err != nil {
		return err
	}
	s.hear(all[0])
	if s.config.Group.Rank() > 0 {
		err = s.admitAll(ctx, brief)
	}
	_, err = dist.Together(s.config.Group, 0, err)
	return err
}

func (s *Servers) first(ctx context.Context) (news, error) {
	if err := os.MkdirAll(s.config.Dir, 0o755); err != nil {
		return news{}, fmt.Errorf("rollout_dir: %w", err)
	}
	if _, err := s.refresh(); err != nil {
		return news{}, err
	}
	if err := s.admitAll(ctx, thorough); err != nil {
		return news{}, err
	}
	return s.news(), nil
}

func (s *Servers) admitAll(ctx context.Context, how trial) error {
	for _, one := range s.servers {
		if err := s.admit(ctx, one, how); err != nil {
			return fmt.Errorf("rollout server %s: %w", one.url, err)
		}
	}
	return nil
}

// Share loads the current weights on the servers and unloads versions that no rank uses. All ranks must call it before
// Generate or Publish; a single process need not.
func (s *Servers) Share(ctx context.Context) error {
	if s.shared.of == s.policy.Version() {
		return nil
	}
	g := s.config.Group
	used, err := dist.Together(g, s.used(), nil)
	if err != nil {
		return err
	}
	var own news
	if g.Rank() == 0 {
		s.held = map[string]bool{}
		for _, name := range slices.Concat(used[1:]...) {
			s.held[name] = true
		}
		err = s.publish(dist.Until(ctx))
		own = s.news()
	}
	all, err := dist.Together(g, own, err)
	if err != nil {
		return err
	}
	s.hear(all[0])
	return nil
}

// used returns the versions that this rank is generating with.
func (s *Servers) used() (names []string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, v := range s.versions {
		if v.users > 0 {
			names = append(names, v.name)
		}
	}
	return names
}

func (s *Servers) news() news {
	newest := s.versions[len(s.versions)-1]
	n := news{Name: newest.name, Of: newest.of}
	for _, v := range s.versions {
		if !v.unloaded {
			n.Kept = append(n.Kept, v.name)
		}
	}
	return n
}

// hear applies the news of rank 0.
func (s *Servers) hear(n news) {
	if s.config.Group.Rank() > 0 {
		s.lock.Lock()
		defer s.lock.Unlock()
		s.versions = slices.DeleteFunc(s.versions, func(v *version) bool { return !slices.Contains(n.Kept, v.name) })
		for _, one := range s.servers {
			for name := range one.loaded {
				if !slices.Contains(n.Kept, name) {
					delete(one.loaded, name)
				}
			}
		}
		s.versions = append(s.versions, &version{name: n.Name, of: n.Of})
	}
	s.shared = s.versions[len(s.versions)-1]
}
