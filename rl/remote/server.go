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

// server is one rollout server.
type server struct {
	url    string // without a path
	key    string
	client *http.Client
	limit  time.Duration // of a request
	lag    time.Duration // delay of a shared file system

	base string // its name of the model

	loading sync.Mutex // held while loading an adapter

	// Guarded by the lock of Servers.
	up      bool
	loaded  map[string]bool // adapters by name
	flying  int             // running requests
	failed  int             // consecutive failures
	retryAt time.Time
}

const (
	quickly  = 10 * time.Second // timeout of requests without computation
	loadOnce = 30 * time.Second
)

// discover finds the server's name of the model.
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
			return fmt.Errorf("its model %s has a context of %d tokens; %d are needed", one.ID, one.MaxModel, positions)
		}
		s.base = one.ID
		return nil
	}
	if name == "" {
		return errors.New("/v1/models lists no model")
	}
	return fmt.Errorf("it has no model %s, only %s; set rollout_model", name, strings.Join(names, ", "))
}

// load loads an adapter on the server. It retries until lag has passed, because files from another machine may arrive late.
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
