#!/bin/bash
printf '#!/bin/bash\ntac\n' > reverse.sh
