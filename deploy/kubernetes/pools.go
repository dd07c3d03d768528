// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"
)

const (
	deviceName = "memory"
	awayTaint  = "terrace.dev/manager-away"
	textMax    = 64 // of an attribute
)

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// poolName names a pool for Kubernetes: NODE/POOL. A name that Kubernetes would not take is replaced by a hash of it; the
// attribute `pool` has it as it is.
func poolName(node, pool string) string {
	if !dnsLabel.MatchString(pool) {
		pool = "pool-" + shortHash(pool)
	}
	return node + "/" + pool
}

// poolIndex is which pool of the manager has which name for Kubernetes.
type poolIndex struct {
	mutex sync.Mutex
	names map[string]string
}

func (p *poolIndex) find(name string) (string, bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	pool, known := p.names[name]
	return pool, known
}

func (p *poolIndex) set(names map[string]string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.names = names
}

// offered is what claims can have of a pool in all, those that have it now included: what is free or soon will be, and what
// leases of this owner have. What others have, and what is kept for them, is not. In granules.
func offered(pool *terracePool, seen *snapshot, owner, tenant string) uint64 {
	bytes := pool.GrantableBytes + pool.ScrubbingBytes
	for _, lease := range seen.Leases {
		parts, _ := parseLabel(lease.Label)
		if parts.owner == owner && lease.Pool == pool.Name && (lease.Phase == "active" || lease.Phase == "revoking") {
			bytes += lease.Bytes
		}
	}
	for _, kept := range seen.Reservations {
		if kept.Pool == pool.Name && kept.Tenant != tenant && kept.Bytes > kept.UsedBytes {
			bytes -= min(bytes, kept.Bytes-kept.UsedBytes)
		}
	}
	bytes = min(bytes, pool.CapacityBytes)
	return bytes - bytes%max(pool.GranuleBytes, 1)
}

// resources describes all pools. `away`: the manager does not answer, and this is what it said last.
func (d *driver) resources(seen *snapshot, away bool) (resourceslice.DriverResources, map[string]string) {
	pools, names := map[string]resourceslice.Pool{}, map[string]string{}
	for _, pool := range seen.Pools {
		name := poolName(d.node, pool.Name)
		names[name] = pool.Name
		slice := resourceslice.Slice{}
		if bytes := offered(&pool, seen, d.owner, d.tenant); bytes > 0 {
			slice.Devices = []resourceapi.Device{deviceOf(&pool, seen, bytes, away)}
		}
		pools[name] = resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	}
	return resourceslice.DriverResources{Pools: pools}, names
}

func deviceOf(pool *terracePool, seen *snapshot, bytes uint64, away bool) resourceapi.Device {
	device := resourceapi.Device{
		Name:                     deviceName,
		AllowMultipleAllocations: ptr.To(true),
		Attributes:               attributesOf(pool, seen),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			memory: {Value: quantity(bytes), RequestPolicy: policyOf(pool.GranuleBytes, bytes)},
		},
	}
	if away {
		device.Taints = []resourceapi.DeviceTaint{{Key: awayTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return device
}

// policyOf has requests rounded up to granules, as a grant would do it, so that scheduler and manager count alike.
func policyOf(granule, bytes uint64) *resourceapi.CapacityRequestPolicy {
	granule = min(max(granule, 1), bytes)
	policy := &resourceapi.CapacityRequestPolicy{
		Default:    ptr.To(quantity(granule)),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(quantity(granule))},
	}
	if 2*granule <= bytes {
		policy.ValidRange.Step = ptr.To(quantity(granule))
	}
	return policy
}

func quantity(bytes uint64) resource.Quantity {
	return *resource.NewQuantity(int64(bytes), resource.BinarySI)
}

func attributesOf(pool *terracePool, seen *snapshot) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	text := func(name resourceapi.QualifiedName, value string) {
		if value != "" {
			attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(value[:min(len(value), textMax)])}
		}
	}
	number := func(name resourceapi.QualifiedName, value *int64) {
		if value != nil {
			attributes[name] = resourceapi.DeviceAttribute{IntValue: value}
		}
	}
	text("pool", pool.Name)
	text("tier", "cxl")
	text("backend", backendsOf(pool, seen))
	text("coherence", pool.Coherence)
	text("isolation", pool.Isolation)
	text("health", string(healthOf(pool, seen).Health))
	attributes["persistent"] = resourceapi.DeviceAttribute{BoolValue: ptr.To(pool.Figures.Persistent)}
	attributes["devices"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(len(pool.Devices)))}
	attributes["granuleBytes"] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(pool.GranuleBytes))}
	number("latencyNs", pool.Figures.LatencyNs)
	number("bandwidthBytesPerSecond", pool.Figures.BandwidthBytesPerS)
	number(deviceattribute.StandardDeviceAttributeNUMANode, pool.Figures.NUMANode)
	return attributes
}

func backendsOf(pool *terracePool, seen *snapshot) string {
	var kinds []string
	for _, device := range seen.Devices {
		if device.Pool == pool.Name && !strings.Contains(strings.Join(kinds, "+"), device.Backend) {
			kinds = append(kinds, device.Backend)
		}
	}
	return strings.Join(kinds, "+")
}
