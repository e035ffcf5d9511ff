//go:build load

package serve

import "testing"

// TestLoad200Clients: 200 clients at once, half of them cut off, lose and leave nothing.
func TestLoad200Clients(t *testing.T) { manyClients(t, 200, 200) }
