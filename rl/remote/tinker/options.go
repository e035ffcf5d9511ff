package tinker

import (
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/jsonapi"
)

// Options choose a service.
type Options struct {
	Engine string `option:"engine" arg:"tinker:URL" incidental:"true" help:"where the adapter is trained and sampled from: tinker:http://host:port is a service with Tinker's API, such as SkyRL or rltrain serve --train; empty = this process. TINKER_API_KEY sets the API key"`
	Name   string `option:"engine_model" needs:"engine" incidental:"true" help:"what the service calls the base model; empty = the only one that it has, or the one named as --model"`
}

// URL is the address of the service, "" for none.
func (o Options) URL() string { return strings.TrimPrefix(o.Engine, "tinker:") }

// Check rejects invalid addresses.
func (o Options) Check() error {
	if o.Engine == "" {
		return nil
	}
	if !strings.HasPrefix(o.Engine, "tinker:") || !jsonapi.IsAddress(o.URL()) {
		return &envs.OptionError{Option: "engine", Err: fmt.Errorf("%.200q is not an address such as tinker:http://host:8000", o.Engine)}
	}
	return nil
}
