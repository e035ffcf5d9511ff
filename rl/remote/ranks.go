package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/rltrain/rltrain/rl/dist"
)

// Where several ranks train together, rank 0 gives the servers the adapters and takes them back, and each rank asks for its
// own share of the answers. A process that is alone is rank 0.

// errNotShared is the error of weights that rank 0 has not given to the servers.
var errNotShared = errors.New("the policy's weights have changed since the ranks have shared them")

// news is what rank 0 tells the others of its versions.
type news struct {
	Name string // of the newest
	Of   uint64
	Kept []string // names of all that servers have
}

// begin gives the servers the first version. Rank 0 looks at them thoroughly, the others see that they reach the same model.
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

// Share gives the weights as they are to the servers, and takes back what no rank needs. All ranks call it together, before
// they Generate or Publish; one that is alone need not.
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

// used are the names of the versions by which this rank is having something written.
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

// hear takes over what rank 0 tells.
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
