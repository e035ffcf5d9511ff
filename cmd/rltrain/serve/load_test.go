//go:build load

package serve

import "testing"

// TestLoad200Clients: with 200 clients at once, half of them cut off, the others get every token and nothing leaks.
func TestLoad200Clients(t *testing.T) { manyClients(t, 200, 200) }
