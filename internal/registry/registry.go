// Package registry keeps definitions by name: tasks, rewards, algorithms, sources of samples.
package registry

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/internal/nearest"
)

// Registry holds definitions by name. The zero value is empty. It is safe for concurrent use.
type Registry[D any] struct {
	lock sync.RWMutex
	all  map[string]D
}

// Add registers a definition. It panics with caller in the message if check, which may read the earlier definitions,
// refuses it.
func (r *Registry[D]) Add(caller, name string, d D, check func(earlier map[string]D) error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if err := check(r.all); err != nil {
		panic(fmt.Sprintf("%s: %q: %v", caller, name, err))
	}
	if r.all == nil {
		r.all = map[string]D{}
	}
	r.all[name] = d
}

// All lists the definitions by name.
func (r *Registry[D]) All() []D {
	r.lock.RLock()
	defer r.lock.RUnlock()
	var all []D
	for _, name := range slices.Sorted(maps.Keys(r.all)) {
		all = append(all, r.all[name])
	}
	return all
}

// Find returns the definition with a name. The error names the kind and lists the names.
func (r *Registry[D]) Find(kind, name string) (D, error) {
	r.lock.RLock()
	defer r.lock.RUnlock()
	d, ok := r.all[name]
	if ok {
		return d, nil
	}
	names := slices.Sorted(maps.Keys(r.all))
	return d, fmt.Errorf("%s %q is unknown: choose %s%s", kind, name, strings.Join(names, ", "), nearest.Hint(name, names, nil))
}
