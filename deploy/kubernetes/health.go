// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const (
	healthAgain   = 10 * time.Second // the kubelet forgets what is not said again within healthTimeout
	healthTimeout = 45 * time.Second
	messageMax    = 1000
	noticesKept   = 10 * time.Minute
)

// healthOf is a pool's health as the kubelet tells it of the pods that have a part of it. Unhealthy is memory that is lost; what
// only makes the pool smaller is in the message.
func healthOf(pool *terracePool, seen *snapshot) kubeletplugin.DeviceHealth {
	told := kubeletplugin.DeviceHealth{DeviceName: deviceName, Health: kubeletplugin.HealthStatusHealthy}
	var said []string
	for _, device := range seen.Devices {
		if device.Pool != pool.Name {
			continue
		}
		switch {
		case !device.Present:
			told.Health = kubeletplugin.HealthStatusUnhealthy
			said = append(said, fmt.Sprintf("device %s is absent", device.Serial))
		case device.State == "failed":
			told.Health = kubeletplugin.HealthStatusUnhealthy
			said = append(said, fmt.Sprintf("device %s has failed", device.Serial))
		case device.State != "in_service":
			said = append(said, fmt.Sprintf("device %s is %s", device.Serial, device.State))
		}
	}
	for _, finding := range seen.Findings {
		if finding.Severity == "critical" && finding.Name != nil && concerns(pool, finding) {
			told.Health = kubeletplugin.HealthStatusUnhealthy
			said = append(said, finding.Text)
		}
	}
	told.Message = strings.Join(said, "; ")
	return told
}

func concerns(pool *terracePool, finding terraceFinding) bool {
	switch finding.Kind {
	case "pool":
		return *finding.Name == pool.Name
	case "device":
		for _, serial := range pool.Devices {
			if serial == *finding.Name {
				return true
			}
		}
	}
	return false
}

// health is what all streams tell. Safe for several goroutines.
type health struct {
	mutex   sync.Mutex
	looked  time.Time // when the manager was last asked
	devices []kubeletplugin.DeviceHealth
	notices map[string][]told // of leases, by pool
	changed chan struct{}
}

type told struct {
	when time.Time
	text string
}

func (h *health) set(node string, seen *snapshot, away bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	devices := make([]kubeletplugin.DeviceHealth, 0, len(seen.Pools))
	for _, pool := range seen.Pools {
		device := healthOf(&pool, seen)
		device.PoolName, device.HealthCheckTimeout = poolName(node, pool.Name), healthTimeout
		if away {
			device.Health, device.Message = kubeletplugin.HealthStatusUnknown, "terraced does not answer on this node"
		}
		device.Message = h.withNotices(pool.Name, device.Message)
		devices = append(devices, device)
	}
	h.looked = time.Now()
	if !sameHealth(devices, h.devices) {
		h.devices = devices
		h.wake()
	}
}

// note adds what happened to a lease to its pool's message for a while.
func (h *health) note(pool, text string) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.notices == nil {
		h.notices = map[string][]told{}
	}
	h.notices[pool] = append(h.notices[pool], told{time.Now(), text})
}

func (h *health) withNotices(pool, message string) string {
	kept := h.notices[pool][:0]
	for _, one := range h.notices[pool] {
		if time.Since(one.when) < noticesKept {
			kept = append(kept, one)
		}
	}
	if len(kept) > 0 {
		h.notices[pool] = kept
	} else {
		delete(h.notices, pool)
	}
	for at := len(kept) - 1; at >= 0; at-- { // the newest first
		message = strings.TrimPrefix(message+"; "+kept[at].text, "; ")
	}
	return message[:min(len(message), messageMax)]
}

func (h *health) wake() {
	if h.changed != nil {
		close(h.changed)
	}
	h.changed = make(chan struct{})
}

func sameHealth(a, b []kubeletplugin.DeviceHealth) bool {
	if len(a) != len(b) {
		return false
	}
	for at := range a {
		if a[at] != b[at] {
			return false
		}
	}
	return true
}

// now returns the present report, and what is closed when there is another.
func (h *health) now() (kubeletplugin.DeviceHealthReport, <-chan struct{}) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.changed == nil {
		h.wake()
	}
	report := kubeletplugin.DeviceHealthReport{Devices: make([]kubeletplugin.DeviceHealth, len(h.devices))}
	for at, device := range h.devices {
		device.LastUpdated = h.looked
		report.Devices[at] = device
	}
	return report, h.changed
}

// WatchHealthStatus reports at once, at each change, and often enough that the kubelet does not forget.
func (d *driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		report, changed := d.state.now()
		select {
		case <-ctx.Done():
			return nil
		case reports <- report:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(healthAgain):
		}
	}
}
