package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// server is one that writes.
type server struct {
	url    string // without a path
	key    string
	client *http.Client
	limit  time.Duration // of a request
	lag    time.Duration // that a shared file system may need to show an adapter

	base string // what it calls the model

	loading sync.Mutex // one adapter at a time

	// Under the lock of Servers.
	up      bool
	loaded  map[string]bool // adapters by name
	flying  int             // requests under way
	failed  int             // times in a row
	retryAt time.Time
}

const (
	quickly  = 10 * time.Second // for an answer to what takes no computing
	loadOnce = 30 * time.Second
)

// discover finds out what the server calls the model.
func (s *server) discover(ctx context.Context, name string, positions int) error {
	if err := s.call(ctx, quickly, http.MethodGet, "/health", nil, nil); err != nil {
		return err
	}
	var m models
	if err := s.call(ctx, quickly, http.MethodGet, "/v1/models", nil, &m); err != nil {
		return err
	}
	var names []string
	for _, one := range m.Data {
		if one.Parent != nil {
			continue
		}
		names = append(names, one.ID)
		if name != "" && one.ID != name {
			continue
		}
		if one.MaxModel > 0 && one.MaxModel < positions {
			return fmt.Errorf("its model %s has %d positions, fewer than the %d that are needed", one.ID, one.MaxModel, positions)
		}
		s.base = one.ID
		return nil
	}
	if name == "" {
		return errors.New("it names no model at /v1/models")
	}
	return fmt.Errorf("it has no model %s but %s; say its name with rollout_model", name, strings.Join(names, ", "))
}

// load makes the server load an adapter. What another machine wrote may not be there yet: until lag has passed it is asked
// again.
func (s *server) load(ctx context.Context, name, dir string) error {
	for began, pause := time.Now(), 100*time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := s.call(ctx, loadOnce, http.MethodPost, "/v1/load_lora_adapter", map[string]any{"lora_name": name, "lora_path": dir, "load_inplace": false}, nil)
		switch {
		case err == nil:
			return nil
		case is(err, http.StatusBadRequest) && strings.Contains(err.Error(), "already been loaded"):
			return nil
		case !is(err, http.StatusNotFound, http.StatusInternalServerError) || time.Since(began) > s.lag:
			return fmt.Errorf("loading an adapter from %s: %w", dir, err)
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func (s *server) unload(ctx context.Context, name string) error {
	err := s.call(ctx, quickly, http.MethodPost, "/v1/unload_lora_adapter", map[string]any{"lora_name": name}, nil)
	if is(err, http.StatusNotFound) {
		return nil
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
